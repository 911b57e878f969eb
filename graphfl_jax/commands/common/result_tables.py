"""Tables of one run's results, as text."""

import json
import math
from typing import Any

from ml_collections import ConfigDict

from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import TextTable, score_text
from graphfl_jax.configs.published import Score
from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import OWN

TARGETS = 6  # of a table
# Where noise is added, and from whom it protects a client
MECHANISMS = {
    "central": ("noise of the server", "those who see the models that the server sends"),
    "local": ("noise of each client", "the server and those who see its models"),
}


def score_table(results: dict, paper: Score | None) -> TextTable:
    """Test scores at G, L and P after the last round, and a published score if there is one.

    Splits that all clients share have a column for their mean.
    """
    data, metric = results["dataset"], results["metric"]
    shared = sorted(results["scores"].keys() - {"final", "validation", "best_val"})
    better = "higher" if results["higher_is_better"] else "lower"
    title = f"{results['variant']} on {data['name']}, data: {data['source']}"
    title += f"\n{data['extent']}" if data["extent"] else ""
    caption = f"{better} is better; after round {results['rounds']}, test"
    if sample := results["sample"]:
        caption += (
            f"; ± is half of the 95 % interval of the mean over all {sample['of']:,} clients"
        )
    if paper:
        caption += f"; published {paper.mean} ± {paper.spread} {UNITS[metric][1]}"
    columns = (metric, "sd over clients", "worst decile")
    rows = [["scored at", *columns, *(f"{metric}, {split} test" for split in shared)]]
    meanings = {
        "G": "G  as received",
        "L": "L  after local training",
        "P": "P  the method's predictor",
    }
    for point, meaning in meanings.items():
        scores = results["scores"]["final"][point]
        numbers = [scores[name] for name in ("mean", "std_clients", "worst_decile")]
        numbers += [results["scores"][split][point]["mean"] for split in shared]
        cells = [f"{number:.4g}" for number in numbers]
        if sample and sample["half_width"][point] is not None:
            cells[0] += f" ± {sample['half_width'][point]:.2g}"
        rows.append([meaning, *cells])
    return TextTable(title, caption, rows)


def stopped_text(results: dict) -> str:
    """Where and why a run ended before its last round; empty if it did not."""
    why = results.get("stopped")
    return f"stopped at round {results['rounds']}: {why}" if why else ""


def weighted_text(results: dict) -> str:
    """The means weighted by the clients' test examples; empty if they are the plain ones."""
    weighted = results.get("means_by_examples")
    plain = {point: results["scores"]["final"][point]["mean"] for point in POINTS}
    if weighted is None or not all(map(math.isfinite, weighted.values())):
        return ""
    if all(math.isclose(weighted[point], plain[point], rel_tol=1e-6) for point in POINTS):
        return ""
    parts = (f"{point} {score_text(weighted[point])}" for point in POINTS)
    return f"means weighted by test examples: {', '.join(parts)}"


def privacy_text(results: dict) -> str:
    """Epsilon and delta of a private run; empty of any other."""
    privacy = results.get("privacy")
    if privacy is None:
        return ""
    epsilon = privacy["epsilon"]
    if privacy["accountant"] is None:
        return f"{privacy['name']} privacy of clients: no accountant knows its epsilon"
    cost = "no noise, so no privacy" if epsilon is None else f"epsilon {epsilon:.3g}"
    counted = f"at delta {privacy['delta']:g}, accountant {privacy['accountant']}"
    return f"{privacy['name']} differential privacy of clients: {cost} {counted}"


def privacy_rows(results: dict) -> list[list[str]]:
    """What the privacy of a run is and costs, each with its name; empty without one."""
    privacy = results.get("privacy")
    if privacy is None:
        return []
    name, epsilon = privacy["name"], privacy["epsilon"]
    known = privacy["accountant"] is not None
    where, protected = MECHANISMS[name] if known else ("of your own", "")
    rows = [["mechanism", f"{name}, {where}"]]
    if not known:
        return [*rows, ["epsilon", "not known"]]
    cost = "infinite, since there is no noise" if epsilon is None else f"{epsilon:.3g}"
    rows += [
        ["protects a client from", protected],
        [
            f"epsilon at delta {privacy['delta']:g}",
            f"{cost} (accountant {privacy['accountant']})",
        ],
        ["noise multiplier z", f"{privacy['noise_multiplier']:g}"],
        ["clip C, or the first one", f"{privacy['clip']:g}"],
    ]
    if privacy.get("rounds") is not None:
        rows.append(["counted rounds", f"{privacy['rounds']:,}"])
    if privacy.get("cohort") is not None:
        cohort = f"{privacy['cohort']:,g} of {privacy['population']:,}"
        rows.append(["clients in a counted round", cohort])
    return rows


def clock_text(results: dict) -> str:
    """How long a run would have taken on its devices; empty without a clock."""
    seconds = results.get("simulated_seconds")
    if seconds is None:
        return ""
    return f"simulated clock: {seconds:,.4g} s in {results['rounds']} rounds"


def sample_text(results: dict) -> str:
    """How many clients were scored, with the interval of the mean at P; empty for all."""
    sample = results.get("sample")
    if sample is None:
        return ""
    text = f"{len(sample['ids']):,} of {sample['of']:,} clients were scored"
    width = sample["half_width"]["P"]
    if width is None:
        return text
    mean = score_text(results["scores"]["final"]["P"]["mean"])
    return f"{text}; the 95 % interval of the mean over all at P is {mean} ± {width:.2g}"


def rounds_by_client(results: dict) -> dict[int, int] | None:
    """The rounds in which each client trained by its number; None if they are not known.

    Where a sample of the clients was scored, these are its clients, and in files of older
    releases all.
    """
    trained, sample = results.get("rounds_trained"), results.get("sample")
    if trained is None:
        return None
    sampled = sample is not None and len(trained) == len(sample["ids"])
    return dict(zip(sample["ids"] if sampled else range(len(trained)), trained, strict=True))


def further_tables(results: dict, factor: float = 1, unit: str = "") -> list[TextTable]:
    """What results.json holds beside the scores of all clients.

    These are the scores by architecture, further metrics, errors by horizon or target, and
    scores by label, those that there are. Points with the same scores share a column or row.
    A unit is of scores times a factor.
    """
    tables = []
    if results.get("architectures"):
        tables.append(architecture_table(results, factor, unit))
    if results.get("metrics"):
        tables.append(metric_table(results["metrics"]))
    if errors := results.get("errors"):
        tables.append((own_error_table if errors["units"] == OWN else error_table)(errors))
    if results.get("labels"):
        tables.append(label_table(results, factor, unit))
    return [once(table) for table in tables]


def distinct_points(values: dict[str, Any]) -> dict[str, str]:
    """The points of some values by name, those with the same value once, as "G and P"."""
    same = {}
    for point in filter(values.__contains__, POINTS):
        same.setdefault(json.dumps(values[point]), []).append(point)
    return {" and ".join(points): points[0] for points in same.values()}


def once(table: TextTable) -> TextTable:
    """A table, in which columns of points with the same cells are one."""
    columns = {head: cells for head, *cells in zip(*table.rows, strict=True)}
    names = {point: name for name, point in distinct_points(columns).items()}
    kept = [
        [names.get(head, head), *cells]
        for head, cells in columns.items()
        if head in names or head not in POINTS
    ]
    return table._replace(rows=[list(row) for row in zip(*kept, strict=True)])


def metric_table(metrics: dict) -> TextTable:
    """Means of the further metrics at G, L and P, and how many clients have one."""
    rows = [["metric", *POINTS, "clients"]]
    for name in metrics["P"]:
        means = [score_text(metrics[point][name]["mean"]) for point in POINTS]
        rows.append([name, *means, str(metrics["P"][name]["clients"])])
    caption = "test; means over the clients for which the metric is defined"
    return TextTable("further metrics", caption, rows)


def architecture_table(results: dict, factor: float = 1, unit: str = "") -> TextTable:
    """Test scores of the clients of each architecture, and the traffic of one of them."""
    rows = [["architecture", "clients", *POINTS, "down", "up"]]
    for name, part in results["architectures"].items():
        scores = (score_text(part["scores"]["test"][point], factor) for point in POINTS)
        traffic = (f"{part[way]:,}" for way in ("down_bytes", "up_bytes"))
        rows.append([name, str(len(part["clients"])), *scores, *traffic])
    caption = f"{_means(results, unit)}; bytes per client and round"
    return TextTable("by architecture", caption, rows)


def error_table(errors: dict) -> TextTable:
    """Errors of forecasts at G, L and P over the targets that are not missing."""
    units, digits = errors["units"], {"mae_seen": 2, "rmse_seen": 2, "mape_seen": 1}
    rows = [["horizon", "scored at", f"MAE ({units})", f"RMSE ({units})", "MAPE (%)"]]
    for horizon in errors["G"]:
        for name, point in distinct_points(errors).items():
            scores = [errors[point][horizon][score] for score in digits]
            missing = scores[0] is None
            texts = (f"{score:.{d}f}" for score, d in zip(scores, digits.values(), strict=True))
            rows.append([horizon, name, *(["none"] * len(digits) if missing else texts)])
    caption = "without missing targets; results.json also has the errors with them"
    return TextTable("errors of forecasts", caption, rows)


def own_error_table(errors: dict) -> TextTable:
    """Errors of scaled targets at G, L and P in the targets' own units."""
    targets = list(errors["G"])[:TARGETS]
    others = len(errors["G"]) - len(targets)
    rows = [["target", "scored at", "MAE", "RMSE"]]
    for target in targets:
        for name, point in distinct_points(errors).items():
            scores = (score_text(errors[point][target][score]) for score in ("mae", "rmse"))
            rows.append([target, name, *scores])
    caption = "test, means over clients" + (
        f"; results.json has {others} more targets" if others else ""
    )
    return TextTable("errors in the targets' own units", caption, rows)


def label_table(results: dict, factor: float = 1, unit: str = "") -> TextTable:
    """The AUC of each label at G, L and P, and how many clients have one."""
    labels, rows = results["labels"], [["label", *POINTS, "clients"]]
    for label in labels["P"]:
        at_points = [labels[point][label] for point in POINTS]
        scores = (score_text(summary["auc"], factor) for summary in at_points)
        rows.append([label, *scores, str(at_points[-1]["clients"])])
    title = f"AUC{_unit_text(unit)} by label on {results['dataset']['name']}"
    caption = "test; means over the clients with positive and negative examples"
    return TextTable(title, caption, rows)


def new_clients_table(results: dict) -> TextTable:
    """Test scores of the new clients when they join and after each of their rounds."""
    new_clients = results["new_clients"]
    rows = [["rounds", *POINTS, "sd over clients at P", "worst decile at P"]]
    for row in new_clients["curve"]:
        scores = [row[point]["mean"] for point in POINTS]
        scores += [row["P"]["std_clients"], row["P"]["worst_decile"]]
        rows.append([str(row["rounds"]), *map(score_text, scores)])
    title = f"{len(new_clients['clients'])} new clients on {results['dataset']['name']}"
    caption = f"{results['metric']} after rounds in which only the new clients adapt"
    if new_clients["diverged_at"] >= 0:
        caption += f"; diverged in round {new_clients['diverged_at']}"
    return TextTable(title, caption, rows)


def new_architectures_table(results: dict, factor: float = 1, unit: str = "") -> TextTable:
    """Test scores of the new clients of each architecture, before and after their rounds."""
    rows = [["architecture", "trained", "clients", "rounds", *POINTS]]
    for name, part in results["new_clients"]["architectures"].items():
        trained = "yes" if part["trained"] else "no"
        for row in part["curve"]:
            scores = (score_text(row[point], factor) for point in POINTS)
            counts = (str(len(part["clients"])), str(row["rounds"]))
            rows.append([name, trained, *counts, *scores])
    return once(TextTable("new clients by architecture", _means(results, unit), rows))


def attack_table(results: dict) -> TextTable:
    """Test scores of all and of benign clients, and the success rate of a backdoor.

    Benign clients are also split by the share of malicious ones among their neighbours.
    """
    attack, everyone = results["attack"], results["scores"]["final"]
    defence = f" against {results['defence']}" if results["defence"] else ""
    rows = [["test scores of", "clients", *POINTS]]

    def add(name, count, scores):
        rows.append([name, str(count), *(score_text(scores[point]) for point in POINTS)])

    means = {point: everyone[point]["mean"] for point in POINTS}
    who = "all clients" if results.get("sample") is None else "scored clients"
    add(who, len(everyone["P"]["per_client"]), means)
    benign = attack["benign"]
    if benign:
        means = {point: benign[point]["mean"] for point in POINTS}
        add("benign clients", len(benign["P"]["per_client"]), means)
    for row in attack["benign_by_malicious_neighbours"] or ():
        share = "no neighbour" if row["share"] == "none" else row["share"]
        add(f"  {share} malicious", len(row["ids"]), row["scores"])
    if attack["success"]:
        add("attack success", "", attack["success"])
    title = f"{attack['name']}{defence}, {len(attack['ids'])} malicious clients"
    trained = rounds_by_client(results)
    idle = trained and all(trained.get(i) == 0 for i in attack["ids"])
    notes = [results["metric"], "results.json has their names", rejected_text(results)]
    notes.append("none of them trained in any round" if idle else "")
    return TextTable(title, "; ".join(filter(None, notes)), rows)


def rejected_text(results: dict) -> str:
    """The shares of rejected uploads; empty without a defence that rejects some."""
    shares = results["rejected"]
    if shares is None:
        return ""
    whose = {"honest": "benign", "malicious": "malicious"}
    named = [f"{shares[k]:.1%} of {who}" for k, who in whose.items() if shares[k] is not None]
    return f"rejected uploads: {', '.join(named)} clients" if named else ""


def trained_text(results: dict) -> str:
    """How many clients trained in no round, and the scores of the others; empty without any."""
    if none_trained(results):
        return (
            f"no client of {len(results['rounds_trained'])} trained in any round, so their "
            "models are those of the start; set more rounds, or see that clients are available"
        )
    part = results.get("trained_only")
    if part is None:
        return ""
    everyone = len(results["scores"]["final"]["P"]["per_client"])
    means = (f"{point} {score_text(part['final'][point])}" for point in POINTS)
    return (
        f"{everyone - part['clients']} of {everyone} clients trained in no round, so a "
        f"model that {results['variant']} keeps for one of them alone is untrained; means of "
        f"{results['metric']} over the {part['clients']} others: {', '.join(means)}"
    )


def none_trained(results: dict) -> bool:
    """Whether no client that was scored took part in any round of a run that has scores.

    Of clients whose uploads were not finite, `not_finite_text` says more.
    """
    rounds, broken = results.get("rounds_trained"), results.get("not_finite")
    return bool(rounds) and not (any(rounds) or broken or results["diverged"])


def divergence_remedy(config: ConfigDict) -> str:
    """What may help a run that diverged."""
    lower = "lower the learning rates"
    if config.data.get("scale") == "none":
        return f"set --config.data.scale=standard, or {lower}"
    return lower


def not_finite_text(results: dict) -> str:
    """Which clients left numbers that are not finite, how often, and the scores of the others.

    Args:
      results: of a run that has left such numbers and was played to its end.
    """
    broken, parts = results["not_finite"], []
    if broken["uploads"]:
        counts = (f"{name} ({rounds})" for name, rounds in broken["uploads"].items())
        total = sum(broken["uploads"].values())
        parts.append(
            f"{total} uploads were not finite, and those clients counted as untrained in these "
            f"rounds: {', '.join(counts)}"
        )
    if broken["scores"]:
        means = (f"{point} {score_text(broken['others'][point])}" for point in POINTS)
        others = len(results["scores"]["final"]["P"]["per_client"]) - len(broken["scores"])
        parts.append(
            f"the scores of {', '.join(broken['scores'])} are not finite; means of "
            f"{results['metric']} over the {others} others: {', '.join(means)}"
        )
    return "; ".join(parts)


def cost_text(results: dict, seconds: dict[str, float]) -> str:
    """Time, speed and traffic of a run.

    Args:
      results: of the run, with the times of all its starts.
      seconds: of this start.
    """
    timing, traffic = results["timing"], results["communication"]
    now, every = sum(seconds.values()), sum(timing[f"{what}_s"] for what in seconds)
    resumed = f", {every:.1f} s with earlier starts" if every > now else ""
    parts = (f"{what} {seconds[what]:.1f}" for what in ("compile", "train", "evaluate"))
    return (
        f"{now:.1f} s ({', '.join(parts)}){resumed}; "
        f"{timing['client_steps_per_s']:,.0f} client-steps/s; "
        f"{traffic['down_bytes']:,} bytes down and {traffic['up_bytes']:,} up "
        f"per client and round"
    )


def _means(results, unit):
    return f"means of {results['metric']}{_unit_text(unit)} over clients, test"


def _unit_text(unit):
    return f" ({unit})" if unit else ""
