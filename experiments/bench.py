"""Measures the speed and the memory of a configuration.

    python -m experiments.bench tpt48
    python -m experiments.bench fl60 --methods=fedavg,ditto,panacea

Prints the time of a round and of an evaluation, the time to compile, the peak memory, and the
rate of the round's matrix products compared with the largest rate of this machine; convolutions
count as matrix products. Times are medians of repeats in one process, with the fastest and the
slowest. With --distributed, all processes take part and the first one prints.

    --methods=all, or a list        compares methods on the configuration's data and sizes
    --vary=model.hidden=16,32       compares values of a field
    --vary=defence.name=none,clip   the same, where none leaves the field empty
    --against=torch                 compares with PyTorch, see `benchmarks.torch_comparison`
    --against=fedavg                compares a round of several architectures with FedAvg's
                                    rounds of each architecture
    --scaling=clients               times rounds over sizes, see `benchmarks.scaling`
    --rehearse=h100                 compiles rounds for a GPU that need not exist, and counts
                                    what they would launch, see `benchmarks.rehearsal`
    --suite                         measures all of this, see `benchmarks.suite`

With --config=custom, --images=28x28x1 generates images, so that no file is needed;
--clients, --examples and --classes are their numbers.

The first two and --against=fedavg compare all times with the first row, which is FedAvg for
methods, and the whole round with --against=fedavg.

--against=torch and --scaling write JSON, a Markdown page and a figure into the folder of --out,
by default runs/bench. --suite needs no --config, and writes suite.json and suite.md, by default
to runs/suite; with --page=docs/results/speed.md it also writes the tables of that page. Its
measurements w1 and w2 compare with FedJAX and fluke, and million with FedJAX: --fedjax and
--fluke name the Python of an environment that has the library; the scripts in experiments/peers
say how to install it. The others write bench.json and bench.md if --out or --page is given.
"""

import functools
import statistics
import sys
import time
from pathlib import Path

import matplotlib
from absl import flags
from ml_collections import ConfigDict

from experiments.benchmarks import rehearsal, scaling, suite, timing, torch_comparison
from experiments.benchmarks.report import Report, show, write
from experiments.common import pages
from experiments.common.flag_values import check_names, flag_text, refuse_flag
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.command_line import FLAGS, launch
from graphfl_jax.commands.common.configuration import configuration, refuse_configuration
from graphfl_jax.commands.common.processes import join_processes
from graphfl_jax.configs import change, for_any_task, methods, parse
from graphfl_jax.configs.base import needing, variant_of
from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.values import adjust, values_of
from graphfl_jax.data.federation import Federation
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.initial import check_not_single
from graphfl_jax.runs.multihost import is_first, run_synchronized
from graphfl_jax.runs.single import compile_session
from graphfl_jax.runs.store import check_folder

flags.DEFINE_integer("repeats", 9, "Timed repeats of every measurement.", lower_bound=1)
flags.DEFINE_list("methods", [], "Methods to compare; all is every method that any data allow.")
flags.DEFINE_string("vary", None, "FIELD=VALUE,VALUE,...: values of a field to compare.")
flags.DEFINE_integer("rounds_each", 20, "Rounds in a timed repeat.", lower_bound=1)
flags.DEFINE_enum(
    "against",
    None,
    ["torch", "fedavg"],
    "What to compare with: PyTorch, or FedAvg with each of several architectures alone.",
)
flags.DEFINE_list(
    "variants",
    list(torch_comparison.VARIANTS),
    f"Variants of the other library, of {', '.join(torch_comparison.VARIANTS)}.",
)
flags.DEFINE_integer(
    "threads", None, "Threads of PyTorch; by default its own choice.", lower_bound=1
)
flags.DEFINE_enum(
    "scaling", None, list(scaling.SCALINGS), "Number over which rounds are timed."
)
flags.DEFINE_enum(
    "rehearse", None, list(rehearsal.CARDS), "GPU for which rounds are compiled and counted."
)
flags.DEFINE_list("sizes", [], "Values of that number; by default a suitable range.")
flags.DEFINE_string(
    "images", None, "HEIGHTxWIDTHxCHANNELS: generates images as the data of --config=custom."
)
flags.DEFINE_integer("clients", 20, "Clients with generated images.", lower_bound=1)
flags.DEFINE_integer("examples", 500, "Generated images of each client.", lower_bound=1)
flags.DEFINE_integer("classes", 10, "Classes of generated images.", lower_bound=2)
flags.DEFINE_bool("suite", False, "Measure everything that docs/results/speed.md shows.")
flags.DEFINE_list("only", [], f"Measurements of the suite, of {', '.join(suite.names())}.")
for peer in suite.PEERS:
    flags.DEFINE_string(peer, None, f"Python of the environment with {peer}, to compare with.")
flags.DEFINE_string(
    "out",
    None,
    "Output folder; --against and --scaling default to runs/bench, --suite to runs/suite.",
)

IMAGE_FLAGS = ("clients", "examples", "classes")
WAYS = (
    "methods",
    "vary",
    "against",
    "scaling",
    "rehearse",
    "suite",
)  # each excludes the others
# By flag: the only flag, or the only flag with its value, with which it is read.
READ_WITH = dict.fromkeys(IMAGE_FLAGS, "images") | {
    **dict.fromkeys(("only", *suite.PEERS), "suite"),
    "sizes": "scaling",
    "threads": "against=torch",
    "variants": "against=torch",
}
UNREAD = {  # flags that a way to measure does not read
    "against": ("distributed",),
    "scaling": ("distributed", "images"),
    "rehearse": ("distributed", "repeats", "rounds_each", "cores"),
    "suite": ("images", "distributed", "repeats", "rounds_each", "cores", "data_root"),
}
REPEATS = "Medians of {repeats} interleaved repeats of {rounds_each} rounds."
DATA = ("seed", "data.", "new_clients.", "attack.")  # beginnings of fields that change the data


def main() -> int:
    matplotlib.use("Agg")  # needs no screen
    check_flags()
    out = Path(FLAGS.out or ("runs/suite" if FLAGS.suite else "runs/bench"))
    check_folder(out)
    if FLAGS.suite:
        refuse_configuration("--suite has its own configurations")
        pythons = {name: FLAGS[name].value for name in suite.PEERS if FLAGS[name].value}
        return suite.measure_all(FLAGS.only, pythons, out, FLAGS.page, sys.argv)
    pages.check_page()
    config = configuration()
    check_not_single(config, on_host=config.data.storage == "host")
    sizes = {"repeats": FLAGS.repeats, "rounds_each": FLAGS.rounds_each, "out": out}
    if FLAGS.against == "torch":
        return torch_comparison.against_torch(
            config, FLAGS.variants, load=federation_of, threads=FLAGS.threads, **sizes
        )
    if FLAGS.scaling:
        return scaling.scale(config, FLAGS.scaling, FLAGS.sizes, **sizes)
    with join_processes():
        report, results = results_of(config)
        if is_first():
            show(report)
            if FLAGS.out or FLAGS.page:
                write(report, out, "bench", results)
    return 0


def results_of(config: ConfigDict) -> tuple[Report, dict]:
    """What the flags ask for: the report and all numbers."""
    if FLAGS.rehearse:
        return rehearsal.rehearse(config, FLAGS.rehearse, load=federation_of)
    configs = compared_configurations(config)
    return compare(config, configs) if configs else measure(config)


def check_flags() -> None:
    """Checks that one way to measure is chosen, and that it reads all flags.

    Raises:
      ValueError: two are chosen, or a flag is not read.
    """
    ways = [name for name in WAYS if FLAGS[name].value]
    if len(ways) > 1:
        raise ValueError(f"{flag_text(ways[0])} excludes --{ways[1]}; leave one of them out")
    for name, reader in READ_WITH.items():
        flag, _, value = reader.partition("=")
        if not FLAGS[flag].value or value not in ("", FLAGS[flag].value):
            refuse_flag(name, f" without --{reader}; add it")
    for way in ways:
        for name in UNREAD.get(way, ()):
            refuse_flag(name, f" by --{flag_text(way)}; leave it out")


def compared_configurations(config: ConfigDict) -> dict[str, ConfigDict]:
    """The configurations that the flags compare, by name; none without such a flag."""
    if FLAGS.vary:
        return configurations_of(config, FLAGS.vary)
    if FLAGS.methods:
        return {name: with_method(config, name) for name in names_of(FLAGS.methods)}
    return each_architecture(config) if FLAGS.against else {}


def federation_of(config: ConfigDict) -> Federation:
    """The data of a configuration, or generated images with --images."""
    if not FLAGS.images:
        return load_federation(config)
    numbers = {name: FLAGS[name].value for name in IMAGE_FLAGS}
    return scaling.load_images(config, FLAGS.images, **numbers)


def names_of(words: list[str]) -> list[str]:
    """The methods that the flag names, FedAvg first.

    Raises:
      ValueError: there is no such method.
    """
    check_names("methods", words, [*methods(), "all"])
    if "all" in words:  # those that need a validation split do not fit all data
        validated = needing("held_out")
        words = [method for method in for_any_task() if method not in validated]
    return list(dict.fromkeys(["fedavg", *words]))


def with_method(config: ConfigDict, method: str) -> ConfigDict:
    """The configuration with another method of `configs.methods`."""
    fields = fields_of(*values_of(config))
    variant, _, _ = variant_of(config).partition("+")  # without its departures
    changes = methods().get(variant, {})
    names = changes.keys() & fields.keys() - {"algorithm.name"}
    defaults = {name: fields[name].default for name in names}
    return adjust(change(config, defaults), {}, methods()[method])[0]


def each_architecture(config: ConfigDict) -> dict[str, ConfigDict]:
    """The configuration, and FedAvg's of each of its architectures with as many clients.

    Raises:
      ValueError: all clients have one architecture.
    """
    groups = build_experiment(config, federation_of(config)).groups
    if len(groups) < 2:
        raise ValueError(
            "against=fedavg compares several architectures, and all clients have one; set "
            "--config=flha_cifar10"
        )
    fedavg = with_method(config, "fedavg")
    alone = {
        f"fedavg, {group.name}": change(
            fedavg, {"model.architectures": (group.name,), "cohort_size": group.cohort_size}
        )
        for group in groups
    }
    return {variant_of(config): config, **alone}


def configurations_of(config: ConfigDict, vary: str) -> dict[str, ConfigDict]:
    """The configurations of "FIELD=VALUE,VALUE", by "FIELD=VALUE".

    The value none of a choice that can be empty leaves it empty.

    Raises:
      ValueError: the field is not one of the configuration, or a value does not fit.
    """
    field, _, values = vary.partition("=")
    if not all(values.split(",")):
        raise ValueError(f"vary={vary} has no values; set --vary=FIELD=VALUE,VALUE")
    fields = fields_of(*values_of(config))
    choices = fields[field].setting.alternatives if field in fields else ()
    names = {"none": ""} if "" in choices and "none" not in choices else {}
    try:
        return {
            f"{field}={text}": parse(config, {field: names.get(text, text)})
            for text in values.split(",")
        }
    except ValueError as error:
        raise ValueError(f"vary={vary}: {error}") from None


def measure(config: ConfigDict) -> tuple[Report, dict]:
    """Measures one configuration: the report and all numbers."""
    experiment = run_synchronized(lambda: build_experiment(config, federation_of(config)))
    began = time.perf_counter()
    session = compile_session(experiment, config)
    session.kept.wait()
    compiling = time.perf_counter() - began
    flops = timing.round_flops(experiment, session.state)
    multiply, peak_flops = timing.matmul_chain()
    functions = {
        "round": timing.player(session, FLAGS.rounds_each),
        "evaluation": functools.partial(session.evaluate, session.state),
        "multiply": multiply,
    }
    times = timing.time_interleaved(functions, FLAGS.repeats)
    rounds = [took / FLAGS.rounds_each for took in times["round"]]
    results = {
        **description(config, experiment.federation),
        "client_steps": config.cohort_size * config.local_steps,
        "s_per_round": timing.spread(rounds),
        "s_per_evaluation": timing.spread(times["evaluation"]),
        "compile_s": compiling,
        "peak_memory_bytes": timing.peak_memory(),
        "products_flop": flops,
        "peak_flop_per_s": peak_flops / min(times["multiply"]),
    }
    return measure_report(results), results


def measure_report(results: dict) -> Report:
    """The report of the results of `measure`."""
    rows = [["", "median", "fastest", "slowest"]]
    for name in ("round", "evaluation"):
        times = (f"{1e3 * took:.2f}" for took in results[f"s_per_{name}"])
        rows.append([f"ms per {name}", *times])
    for name, count in (("rounds/s", 1), ("client-steps/s", results["client_steps"])):
        rows.append([name, *(f"{count / took:,.0f}" for took in results["s_per_round"])])
    flops, peak = results["products_flop"], results["peak_flop_per_s"]
    rate = flops / results["s_per_round"][0]
    lines = [
        REPEATS.format(**results),
        f"Time to compile {results['compile_s']:.1f} s, peak memory "
        f"{results['peak_memory_bytes'] / 2**20:,.0f} MiB.",
        f"Matrix products: {flops / 1e6:,.0f} MFLOP per round at {rate / 1e9:,.0f} GFLOP/s, "
        f"{rate / peak:.0%} of the {peak / 1e9:,.0f} GFLOP/s of products of large "
        f"float32 matrices.",
    ]
    title = f"{results['variant']} on {results['data']}, {results['device']}"
    return Report(title, rows, lines)


def compare(config: ConfigDict, configs: dict[str, ConfigDict]) -> tuple[Report, dict]:
    """Measures the rounds of configurations made from `config`, beside the first of them."""
    players, flops = {}, {}
    data_varies = bool(FLAGS.vary) and FLAGS.vary.startswith(DATA)
    federation = None if data_varies else run_synchronized(federation_of, config)
    for name, compared in configs.items():
        if data_varies:
            federation = run_synchronized(federation_of, compared)
        experiment = run_synchronized(build_experiment, compared, federation)
        session = compile_session(experiment, compared)
        session.kept.wait()
        players[name] = timing.player(session, FLAGS.rounds_each)
        flops[name] = timing.round_flops(experiment, session.state)
    times = timing.time_interleaved(players, FLAGS.repeats)
    first = next(iter(configs))
    results = description(config, federation) | {
        "rows": [
            {
                "name": name,
                "s_per_round": [
                    took / FLAGS.rounds_each for took in timing.spread(times[name])
                ],
                "time_ratio": statistics.median(times[name]) / statistics.median(times[first]),
                "products_flop": flops[name],
                "products_ratio": flops[name] / flops[first],
            }
            for name in configs
        ]
    }
    return compare_report(results), results


def compare_report(results: dict) -> Report:
    """The report of the results of `compare`."""
    rows = [["", "median", "fastest", "slowest", "ratio", "MFLOP", "MFLOP ratio"]]
    for row in results["rows"]:
        rows.append(
            [
                row["name"],
                *(f"{1e3 * took:.2f}" for took in row["s_per_round"]),
                f"{row['time_ratio']:.2f}",
                f"{row['products_flop'] / 1e6:,.0f}",
                f"{row['products_ratio']:.2f}",
            ]
        )
    lines = [
        REPEATS.format(**results),
        "Ratios are relative to the first row: of the medians, and of the operations in matrix "
        "products.",
    ]
    if FLAGS.against:
        whole, *alone = (row["s_per_round"][0] for row in results["rows"])
        ratio = whole / sum(alone)
        lines.append(f"The first row takes {ratio:.2f} times as long as the others together.")
    return Report(f"ms per round on {results['data']}, {results['device']}", rows, lines)


def description(config: ConfigDict, federation: Federation) -> dict:
    """What was measured, and where."""
    return {
        "variant": variant_of(config),
        "data": federation.name,
        "config": config.to_dict(),
        "repeats": FLAGS.repeats,
        "rounds_each": FLAGS.rounds_each,
        **environment(),
    }


if __name__ == "__main__":
    launch(main, keep_compiled=False)  # compiling is measured
