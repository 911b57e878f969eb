"""Measures a configuration: ``python -m experiments.bench --config=configs/tpt48.py``.

Prints rounds and client-steps per second, compile time and peak memory, and what share of the
machine's own matrix-multiply peak the round's products reach, convolutions counted as such.
Times are medians of repeats in one process, with the fastest and the slowest. With
--methods=all, or a list, it compares methods on that configuration's data and sizes, each with
its time per round and its ratio to FedAvg's; with --vary=model.lowering=patches,grouped, or
another field, the values of that field. With --distributed, as `experiments.run` has it, all
processes take part and the first prints.

--against=torch plays the same rounds in PyTorch, verified, beside these
(`torch_comparison`), and --scaling=clients, =runs or =devices times rounds over the number of those (`scaling.py`); both
write JSON and a drawing into the folder of --out.
"""

import copy
import functools
import math
import statistics
from pathlib import Path

import jax
from absl import flags
from jax.extend import core as jex_core
from rich.console import Console
from rich.table import Table

from experiments.benchmarks import scaling, torch_comparison
from experiments.benchmarks.timing import interleaved, peak_memory, player, spread
from experiments.common.command_line import FLAGS, configuration, launch
from experiments.common.processes import joined
from graphfl_jax.build import build_experiment, load_federation, pick, variant_of
from graphfl_jax.configs import base
from graphfl_jax.program import play_round
from graphfl_jax.runs.multihost import is_first, run_synchronized
from graphfl_jax.runs.results import environment
from graphfl_jax.runs.single import compile_experiment

flags.DEFINE_integer("repeats", 9, "Timed repeats of every measurement.", lower_bound=1)
flags.DEFINE_list("methods", [], "Methods of configs/base.py to compare; or all.")
flags.DEFINE_string("vary", None, "FIELD=VALUE,VALUE,...: values of a field to compare.")
flags.DEFINE_integer("rounds_each", 20, "Rounds in a timed repeat.", lower_bound=1)
flags.DEFINE_enum("against", None, ["torch"], "Another library to compare with.")
flags.DEFINE_list("variants", list(torch_comparison.VARIANTS), "How the other library is used.")
flags.DEFINE_integer("threads", None, "PyTorch's threads, else its default.", lower_bound=1)
flags.DEFINE_enum("scaling", None, list(scaling.SCALINGS), "What to time rounds over.")
flags.DEFINE_list("sizes", [], "Numbers of what --scaling names, in place of its own.")
flags.DEFINE_string("out", "runs/bench", "Folder of what --against and --scaling write.")

COMPARISONS = ("methods", "vary", "against", "scaling")


def main() -> int:
    config = configuration()
    chosen = [name for name in COMPARISONS if FLAGS[name].value]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} are two comparisons; leave one out")
    out = Path(FLAGS.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out={out} is no folder; choose another --out")
    repeated = {"repeats": FLAGS.repeats, "rounds_each": FLAGS.rounds_each}
    alone = FLAGS.against or FLAGS.scaling
    if alone and FLAGS.distributed:
        raise ValueError(f"distributed=True measures rounds alone; leave --{chosen[0]} out")
    if FLAGS.against:
        return torch_comparison.against_torch(
            config, FLAGS.variants, threads=FLAGS.threads, **repeated, out=out
        )
    if FLAGS.scaling:
        return scaling.scale(config, FLAGS.scaling, FLAGS.sizes, **repeated, out=out)
    changes = values(config, FLAGS.vary) if FLAGS.vary else {}
    if FLAGS.methods:
        changes = {name: base.METHODS[name] for name in methods(FLAGS.methods)}
    with joined():
        return compare(config, changes) if changes else measure(config)


def measure(config) -> int:
    """Prints what one configuration costs."""
    experiment = run_synchronized(lambda: build_experiment(config, load_federation(config)))
    compiled = compile_experiment(experiment, config)
    flops = round_flops(experiment, config, compiled.state)
    peak, peak_flops = matmul_peak()
    scores = functools.partial(compiled.evaluate, compiled.state)
    times = interleaved(
        {"round": player(compiled, FLAGS.rounds_each), "evaluation": scores, "peak": peak},
        FLAGS.repeats,
    )
    times["round"] = [took / FLAGS.rounds_each for took in times["round"]]

    table = Table(
        title=f"{variant_of(config)} on {config.data.name}, {environment()['device']}"
    )
    for column in ("", "median", "fastest", "slowest"):
        table.add_column(column, justify="right" if column else "left")
    steps = config.cohort_size * config.local_steps
    for name in ("round", "evaluation"):
        table.add_row(f"ms per {name}", *(f"{1e3 * took:.2f}" for took in spread(times[name])))
    for name, count in (("rounds/s", 1), ("client-steps/s", steps)):
        table.add_row(name, *(f"{count / took:,.0f}" for took in spread(times["round"])))
    rate = flops / statistics.median(times["round"])
    best = peak_flops / min(times["peak"])
    console = Console(quiet=not is_first())
    console.print(table)
    console.print(
        f"compile {compiled.seconds:.1f} s, peak memory {peak_memory() / 2**20:,.0f} MiB\n"
        f"products: {flops / 1e6:.0f} MFLOP a round, {rate / 1e9:.0f} GFLOP/s, "
        f"{rate / best:.0%} of the {best / 1e9:.0f} GFLOP/s of a 1024 x 1024 float32 product",
        highlight=False,
    )
    return 0


def methods(names: list[str]) -> list[str]:
    """The methods of those names, FedAvg first; all of them for "all"."""
    for name in names:
        if name != "all":
            pick(base.METHODS, name, "methods")
    chosen = base.METHODS if "all" in names else names
    return ["fedavg", *(name for name in chosen if name != "fedavg")]


def values(config, vary: str) -> dict[str, dict]:
    """What "FIELD=VALUE,VALUE" changes, by the name of each change."""
    field, _, told = vary.partition("=")
    try:
        kind = type(functools.reduce(lambda part, name: part[name], field.split("."), config))
        return {f"{field}={value}": {field: kind(value)} for value in told.split(",")}
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"vary={vary} is not FIELD=VALUE,VALUE with a field of the configuration, values "
            f"of its kind; give one such as model.lowering=patches,grouped"
        ) from None


def compare(config, changes: dict[str, dict]) -> int:
    """Prints what a configuration costs with each of some changes, the first as the measure."""
    federation = run_synchronized(load_federation, config)
    players, work = {}, {}
    for name, change in changes.items():
        own = copy.deepcopy(config)
        own.update_from_flattened_dict(change)
        experiment = run_synchronized(build_experiment, own, federation)
        compiled = compile_experiment(experiment, own)
        players[name] = player(compiled, FLAGS.rounds_each)
        work[name] = round_flops(experiment, own, compiled.state)
    times = interleaved(players, FLAGS.repeats)
    table = Table(
        title=f"ms per round on {config.data.name}, {environment()['device']}",
        caption="ratios are to the first: of the medians, and of the products' operations",
    )
    for column in ("", "median", "fastest", "slowest", "ratio", "MFLOP", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    first = next(iter(changes))
    for name in changes:
        median, *others = (1e3 * took / FLAGS.rounds_each for took in spread(times[name]))
        ratio = statistics.median(times[name]) / statistics.median(times[first])
        table.add_row(
            name,
            *(f"{took:.2f}" for took in (median, *others)),
            f"{ratio:.2f}",
            f"{work[name] / 1e6:,.0f}",
            f"{work[name] / work[first]:.2f}",
        )
    Console(quiet=not is_first()).print(table)
    return 0


def matmul_peak():
    """A function that multiplies large matrices, and the operations that takes."""
    size, products = 1024, 8
    a = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    @jax.jit
    def chain(a):
        return jax.lax.fori_loop(0, products, lambda _, b: b @ a, a)

    return lambda: chain(a), 2 * size**3 * products


def round_flops(experiment, config, state) -> int:
    """Operations in the products of one round, counted in its trace."""

    def one_round(state, data, key):
        algorithm = experiment.build(experiment.hparams, 0)
        return play_round(
            algorithm, data, state, key, cohort_size=config.cohort_size, mesh=None
        )

    trace = jax.make_jaxpr(one_round)(state, experiment.federation.data, jax.random.key(0))
    return matmul_flops(trace.jaxpr)


def matmul_flops(jaxpr: jex_core.Jaxpr) -> int:
    """Operations in all matrix products and convolutions of a trace, those in loops as often
    as they run."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, right = equation.invars[0].aval, equation.outvars[0].aval
            total += 2 * math.prod(left.shape[axis] for axis in contracted) * right.size
        if equation.primitive.name == "conv_general_dilated":
            kernel, right = equation.invars[1].aval, equation.outvars[0].aval
            outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            total += 2 * kernel.size // outputs * right.size
        inner = [
            part if isinstance(part, jex_core.Jaxpr) else part.jaxpr
            for part in equation.params.values()
            if isinstance(part, jex_core.Jaxpr | jex_core.ClosedJaxpr)
        ]
        times = equation.params.get("length", 1)  # of a scan
        total += times * sum(matmul_flops(part) for part in inner)
    return total


if __name__ == "__main__":
    launch(main, keep_compiled=False)  # it tells what compiling takes
