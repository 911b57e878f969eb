"""Methods under attack: the loss of benign clients over the share of malicious clients.

    python -m experiments.robustness tpt48 --attacks=poisoning \\
        --ratios=0,0.1,0.2,0.3,0.4,0.5 --methods=panacea,pfedhn,fedavg --seeds=5

Each method is trained with each share of malicious clients. The malicious clients are drawn
with every seed and are the same for all methods; those of a smaller share are also malicious
with a larger share. All shares and seeds of a method run in one program. Scores are test scores
after the last round. The loss of a method is measured on the clients that are benign under the
attack: their mean score in the run without attackers minus that in the attacked run with the
same seed, with the opposite sign if lower scores are better. It is also stated by the share of
malicious clients among a benign client's neighbours. Intervals are 95 % confidence intervals of
the mean over seeds by Student's t. --simple_tuning adds each method with Simple-Tuning: clients
train new heads before the predictor is scored.

--veto adds each method with defence.veto. The tables then have the scores of the benign
clients, and how far these are below a bound: the score of the same clients in the better of two
runs without attackers, of the method without veto and defence, and of local training, the
method `local`. It is in points for accuracy, and in % for errors.

--defences=none,clip,monotone trains each method with each of these defences that it can have;
a warning names the others. With --best_defences, the tables keep one defence of each method:
that with the fewest diverged runs, and of equal ones that with the best mean validation score
at P over the attacks and shares with which none of these diverged. All clients count in it,
because a server does not know which are malicious. It needs a validation split, such as
--config.data.val_fraction=0.2. With --choose_at=0.3, the defences are chosen from the runs with
these shares and without attackers alone, and the other shares are trained with the chosen
defences only, which takes less time. --keep=panacea+monotone keeps this method with this
defence in the tables even if another defence is chosen.

Any field can be set, such as --config.hparams.attack_lambda=1 or --config.defence.name=krum.
Writes robustness.json and robustness.md, and as .png and .svg robustness and neighbours, into
the folder of --out. Runs that are cached there are not repeated; those of other code are made
again, unless --accept_changes is set. Processes with different --methods can fill the cache of
one folder at the same time; after them, the whole command makes the tables. Runs without
attackers are made once for a method, with the first attack.
"""

import itertools
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import matplotlib
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console

from experiments.common import pages
from experiments.common.flag_values import check_list, check_names, shares
from experiments.paper import robustness_statistics
from experiments.paper.cached_runs import Cache, cached_runs, load_federations
from experiments.paper.robustness_plots import draw_neighbours, draw_robustness
from graphfl_jax.build import Experiment, build_experiment
from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import FLAGS, launch, progress_bar
from graphfl_jax.commands.common.configuration import (
    configuration_file,
    file_configuration,
    refuse_overrides,
)
from graphfl_jax.commands.common.plots import save_figure
from graphfl_jax.commands.common.text_tables import markdown_table, narrow
from graphfl_jax.commands.sweeping.grid import configure_point
from graphfl_jax.configs import change
from graphfl_jax.runs.results import malicious_clients
from graphfl_jax.wire.attacks import ATTACKS
from graphfl_jax.wire.defences import DEFENCES, DoesNotFit

# Simple-Tuning with ten epochs, as its authors train. The steps are the default, which is not
# read: a configuration with other ones, such as compcars, would warn of them.
SIMPLE_TUNING = {"tuning.part": "new_head", "tuning.epochs": 10, "tuning.steps": 50}

flags.DEFINE_list("attacks", ["poisoning"], f"Attacks, of {', '.join(ATTACKS)}.")
flags.DEFINE_list("ratios", "0,0.1,0.2,0.3,0.4,0.5", "Shares of malicious clients; adds 0.")
flags.DEFINE_list("methods", ["panacea", "pfedhn", "fedavg"], "Methods of the configuration.")
flags.DEFINE_integer("seeds", 5, "Runs of every share, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer(
    "at_once", 0, "Runs in one program; 0 is all runs of a method.", lower_bound=0
)
flags.DEFINE_list(
    "defences", [], "Defences of each method, none is no defence; empty: --config.defence.name."
)
flags.DEFINE_bool("best_defences", False, "Keep the best of --defences for each method.")
flags.DEFINE_list("keep", [], "METHOD+DEFENCE, kept beside the best with --best_defences.")
flags.DEFINE_list("choose_at", [], "Shares of --ratios that choose the defence; empty: all.")
flags.DEFINE_bool("veto", False, "Add every method with the veto of its clients.")
flags.DEFINE_bool("simple_tuning", False, "Add every method with Simple-Tuning.")
flags.DEFINE_string("out", "runs/robustness", "Output folder, with a cache of runs.")


class Plan(NamedTuple):
    """Runs with all shares and seeds."""

    attack: str
    plain: str  # name of the method without veto and defence
    undefended: str  # name of the method without its defence
    method: str
    config: ConfigDict


def main() -> int:
    started = time.perf_counter()
    matplotlib.use("Agg")  # needs no screen
    file_configuration()  # fails early without --config
    check_flags()
    ratios = shares("ratios", FLAGS.ratios)
    first_ratios = ratios_of_choice(ratios)
    pages.check_page()
    out = Path(FLAGS.out)
    cache = Cache(out, accept_changes=changes_accepted(), config_files=[configuration_file()])
    plans = fitting_plans(plans_of_flags())
    check_choices(plans, ratios)
    clean_runs, choices = play_bounds(cache) if FLAGS.veto else {}, []
    rows = play_rows(plans, first_ratios, cache, clean_runs)
    if FLAGS.best_defences:
        choices = robustness_statistics.defence_choices(rows)
        best = {choice["method"] for choice in choices if choice["chosen"]}
        rows = [row for row in rows if row["method"] in best.union(FLAGS.keep)]
    later_ratios = [ratio for ratio in ratios if ratio not in first_ratios]
    if later_ratios:
        kept = {row["method"] for row in rows}
        plans = [plan for plan in plans if plan.method in kept]
        rows += play_rows(plans, later_ratios, cache, clean_runs)
        rows.sort(key=lambda row: row["ratio"])  # the tables have ratios in the order of rows

    dataset = next(iter(clean_runs.values()))[0]["dataset"]
    results = {"dataset": dataset, "choices": choices, "rows": rows}
    write_results(results, out, cache.counts(), started)
    return 0


def write_results(results: dict, out: Path, counts: str, started: float) -> None:
    """Prints the tables, and writes them, the numbers and the figures."""
    dataset, choices, rows = results["dataset"], results["choices"], results["rows"]
    console = Console()
    tables = robustness_statistics.robustness_tables(rows)
    if choices:
        tables.insert(0, robustness_statistics.choice_table(choices, rows[0]["metric"]))
    for title, text in tables:
        console.print(narrow(title, text), "", crop=False)  # many ratios need a wide console
    extent = f", {dataset['extent']}" if dataset["extent"] else ""
    note = f"{dataset['name']}, data: {dataset['source']}{extent}"
    texts = [f"{title}:\n\n{markdown_table(text)}" for title, text in tables]
    page = "\n".join([f"{note}\n", *texts])
    pages.write_results(out, "robustness", results, page, since=started, note=f" {counts}.")
    figures = {"robustness": draw_robustness(rows, note)}
    if any(row["ratio"] for row in rows):
        figures["neighbours"] = draw_neighbours(rows, note)
    for name, figure in figures.items():
        save_figure(figure, out / name)
    pages.print_line(
        console,
        f"{note}; {counts}\n{out}/robustness.json and .md; "
        f"{' and '.join(figures)}.png and .svg",
    )


def check_flags() -> None:
    """Checks the flags that name attacks, methods and defences.

    Raises:
      ValueError: one does not fit, or --config sets something that other flags replace.
    """
    path, _, method = FLAGS.config.partition(":")
    if method:
        raise ValueError(
            f"config={FLAGS.config} names a method, which --methods replaces; write "
            f"--config={path} and --methods={method}"
        )
    replaced = {
        "seed": "the runs have the seeds 0, 1, ... of --seeds",
        "algorithm.name": "--methods replaces it",
        "attack.name": "--attacks replaces it",
        "hparams.attack_ratio": "--ratios replaces it",
    }
    if FLAGS.veto:
        replaced["defence.veto"] = "--veto adds it"
    if FLAGS.defences or FLAGS.veto:  # whose bound is of methods without a defence
        replaced["defence.name"] = "--defences replaces it"
    refuse_overrides(replaced)
    check_list("attacks", FLAGS.attacks)
    check_names("attacks", FLAGS.attacks, ATTACKS)
    check_list("methods", FLAGS.methods)
    if FLAGS.defences:
        check_list("defences", FLAGS.defences)
        check_names("defences", FLAGS.defences, ("none", *DEFENCES))
    if FLAGS.best_defences and len(FLAGS.defences) < 2:
        raise ValueError("best_defences chooses from --defences; give two or more of them")
    for name, remedy in (("choose_at", "add it"), ("keep", "leave it out")):
        if FLAGS[name].value and not FLAGS.best_defences:
            words = f"{name}={','.join(FLAGS[name].value)}"
            raise ValueError(f"{words} has no effect without --best_defences; {remedy}")


def ratios_of_choice(ratios: list[float]) -> list[float]:
    """The shares of `ratios` with which all defences are trained, with 0.

    Raises:
      ValueError: --choose_at does not fit.
    """
    if not FLAGS.choose_at:
        return ratios
    chosen = shares("choose_at", FLAGS.choose_at)
    if not set(chosen) <= set(ratios):
        words = f"choose_at={','.join(FLAGS.choose_at)}"
        raise ValueError(f"{words} has a share that --ratios has not; add it to --ratios")
    return chosen


def check_choices(plans: list[Plan], ratios: list[float]) -> None:
    """Checks the methods, shares and splits that flags name with the runs and their data.

    Raises:
      ValueError: a method of --keep is not trained, nobody attacks with a share above 0, or
        --best_defences lacks a validation split.
    """
    names = dict.fromkeys(plan.method for plan in plans)
    for name in FLAGS.keep:
        if name not in names:
            words = f"keep={','.join(FLAGS.keep)}"
            raise ValueError(f"{words}: {name} is not trained; choose from {', '.join(names)}")
    experiment = experiment_of(plans[0])
    for ratio in filter(None, ratios):
        if not malicious_clients(experiment._replace(hparams={"attack_ratio": ratio})).any():
            raise ValueError(
                f"ratios={','.join(FLAGS.ratios)}: with {ratio:g}, no client attacks; give "
                f"larger shares, or 0"
            )
    if FLAGS.best_defences and "val" not in experiment.federation.data.evals:
        raise ValueError(robustness_statistics.NO_VALIDATION)


def play_rows(
    plans: list[Plan], ratios: list[float], cache: Cache, clean_runs: dict
) -> list[dict]:
    """`robustness_row` with ``attack``, ``method``, ``ratio`` and ``undefended``, of all plans.

    Args:
      ratios: in ascending order, with 0 where `clean_runs` has no runs.
      clean_runs: runs without attackers, which are added.
    """
    rows, seeds = [], list(range(FLAGS.seeds))
    with progress_bar("methods") as bar:
        task = bar.add_task("methods", total=len(plans))
        for attack, plain, undefended, method, config in plans:
            bar.update(task, description=f"{method}, {attack}")
            config = change(config, {"eval_every": config.rounds})  # only final scores count
            # Without attackers, only a backdoor measures something that others do not: its
            # success.
            key = (method, attack if attack == "backdoor" else "")
            new = [ratio for ratio in ratios if ratio or key not in clean_runs]
            bound = [clean_runs[name, ""] for name in ("local", plain) if FLAGS.veto]
            points = [{"attack_ratio": ratio} for ratio in new]
            runs = iter(cached_runs(config, seeds, cache, points=points, at_once=FLAGS.at_once))
            for ratio in ratios:
                attacked = [next(runs) for _ in seeds] if ratio in new else clean_runs[key]
                clean = clean_runs.setdefault(key, attacked)  # with 0, which comes first
                names = {"attack": attack, "method": method, "ratio": ratio}
                row = robustness_statistics.robustness_row(attacked, clean, bound)
                rows.append(names | {"undefended": undefended} | row)
            bar.advance(task)
    return rows


def play_bounds(cache: Cache) -> dict:
    """Runs of `play_rows` without attackers, of all methods without veto and defence.

    Those of `local` are also runs without an attack.
    """
    runs, tunings, seeds = {}, tunings_of_flags(), list(range(FLAGS.seeds))
    attack = {"attack.name": FLAGS.attacks[0], "hparams.attack_ratio": 0.0}
    plans = [("local", {"algorithm": "local"})]
    for method, tuning in itertools.product(FLAGS.methods, tunings):
        plans.append((method + tuning, {"algorithm": method} | attack | tunings[tuning]))
    with progress_bar("methods") as bar:
        task = bar.add_task("runs without attackers", total=len(plans))
        for name, point in plans:
            config, _ = configure_point(point)
            config = change(config, {"eval_every": config.rounds})
            runs[name, ""] = cached_runs(config, seeds, cache, at_once=FLAGS.at_once)
            bar.advance(task)
    return runs


def plans_of_flags() -> list[Plan]:
    """All runs of the flags, attack by attack.

    Raises:
      ValueError: a value is outside its range, or no run reads a field.
    """
    tunings = tunings_of_flags()
    vetoes = {"": {}} | ({"+veto": {"defence.veto": True}} if FLAGS.veto else {})
    defences = {} if FLAGS.defences else {"": {}}
    for name in FLAGS.defences:
        suffix, value = ("", "") if name == "none" else (f"+{name}", name)
        defences[suffix] = {"defence.name": value}
    plans, unread = [], []
    for attack, method, tuning, veto, defence in itertools.product(
        FLAGS.attacks, FLAGS.methods, tunings, vetoes, defences
    ):
        point = {"algorithm": method, "attack.name": attack}
        parts = tunings[tuning] | vetoes[veto] | defences[defence]
        config, ignored = configure_point(point | parts)
        plain = method + tuning
        undefended = plain + veto
        plans.append(Plan(attack, plain, undefended, undefended + defence, config))
        unread.append(ignored)
    for field in set.intersection(*map(set, unread)):
        raise ValueError(
            f"{field}={unread[0][field]} is not read by any run; remove it, or add a method "
            f"that reads it"
        )
    return plans


def tunings_of_flags() -> dict[str, dict]:
    """Fields of each tuning, by the end of a method's name."""
    return {"": {}} | ({"+simple-tuning": SIMPLE_TUNING} if FLAGS.simple_tuning else {})


def fitting_plans(plans: list[Plan]) -> list[Plan]:
    """Those runs whose method can have their defence; warns of the others.

    Raises:
      ValueError: a method can have none of the defences, or something else does not fit.
    """
    clients = plans[0].config.attack.clients
    if clients:
        raise ValueError(
            f"attack.clients={','.join(map(str, clients))} chooses attackers as --ratios does; "
            f"leave it out"
        )
    refused = {}
    for plan in plans:
        if plan.attack == plans[0].attack:
            try:
                experiment_of(plan)
            except DoesNotFit as why:
                refused[plan.method] = why
    kept = [plan for plan in plans if plan.method not in refused]
    for plan in plans:
        if plan.undefended not in {fitting.undefended for fitting in kept}:
            raise refused[plan.method]
    for attack in FLAGS.attacks[1:]:  # whether the data allow it is the same for all methods
        experiment_of(next(plan for plan in kept if plan.attack == attack))
    for method, why in refused.items():
        warnings.warn(f"{method} is left out: {why}", RuntimeWarning, stacklevel=2)
    return kept


def experiment_of(plan: Plan) -> Experiment:
    """The experiment of a plan, after a check that its configuration fits its data."""
    return build_experiment(plan.config, load_federations(plan.config, [0])[0])


if __name__ == "__main__":
    launch(main)
