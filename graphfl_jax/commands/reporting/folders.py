"""What the files of a run's folder state, as a plain dictionary for a report."""

from typing import Any

from graphfl_jax.commands.common import finished_runs, result_tables
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.reporting.places import map_of
from graphfl_jax.configs import PRESETS, methods
from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.published import published_score
from graphfl_jax.configs.values import configuration, values_of
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.forms import FEDERATION
from graphfl_jax.runs.identity import PATHS
from graphfl_jax.runs.results import DESCRIPTION

THOUSANDTHS = "×\N{NO-BREAK SPACE}10⁻³"
PRINTED = {"1e-3": THOUSANDTHS}  # units as a page shows them
SUMMARY = ("mean", "std_clients", "worst_decile")  # of the scores at P
# Why a report of an older run has no map.
NO_RELATIONS = (
    f"There is no map: of the {{of:,}} clients, {DESCRIPTION} has the {{listed:,}} that were "
    f"scored or joined later, and no relations."
)
NO_DESCRIPTION = (
    f"There is no map: {DESCRIPTION}, which names the clients and their relations, is not "
    f"in the folder. Runs of older releases do not write it."
)


def run_facts(run: finished_runs.FinishedRun) -> dict[str, Any]:
    """What a report states of a run. Scores are those of the files, unchanged.

    Raises:
      ValueError: a file is damaged.
    """
    rows, described = finished_runs.read_rows(run.path), None
    if (run.path / DESCRIPTION).exists():
        described = finished_runs.read_object(run.path / DESCRIPTION, FEDERATION)
        if why := _contradiction(described, run.results):
            raise finished_runs.damage_error(run.path / DESCRIPTION, why)
    if run.results["diverged"]:  # some clients may have scores
        run = run._replace(results=run.results | {"scores": None})
    with finished_runs.fitting(run.path):
        return _collect(run, rows, described)


def _contradiction(described, results):
    """What in federation.json does not fit together or to the results; empty if all does."""
    clients, axes = described["clients"], described["axes"] or ()
    training, joined = ([c for c in clients if c["new"] == new] for new in (False, True))
    scores, new = results["scores"], results["new_clients"]
    sample, listed = results.get("sample"), described.get("listed")
    scored = len(sample["ids"]) if sample else len(training)
    if scores and len(scores["final"]["P"]["per_client"]) != scored:
        return "it has other clients than results.json"
    if listed and (len(listed["ids"]) != len(clients) or max(listed["ids"]) >= listed["of"]):
        return "listed does not fit the clients"
    total = listed["of"] - len(joined) if listed else len(training)
    if sample and (sample["of"] != total or max(sample["ids"]) >= total):
        return "the sample of results.json is of other clients"
    if sample and listed and sample["ids"] != listed["ids"][: len(training)]:
        return "listed has other clients than the sample of results.json"
    if new and new["clients"] != [client["name"] for client in joined]:
        return "it has other new clients than results.json"
    if any(max(pair[:2]) >= len(clients) for pair in described["relations"]):
        return "relations have clients that it does not have"
    if any(len(client["position"] or ()) != len(axes) for client in clients):
        return "a position does not fit the axes"
    sizes = {len(c["labels"]["train"]) for c in clients if c["labels"]}
    return "" if sizes <= {described["outputs"]} else "labels do not fit the outputs"


def _collect(run, rows, described):
    path, values, results, unknown = run
    metric = results["metric"]
    factor, unit = UNITS.get(metric, (1, ""))
    unit = PRINTED.get(unit, unit)
    clients, listed = _clients(results, described), described and described.get("listed")
    why_no_map = "" if described else NO_DESCRIPTION
    if listed:
        why_no_map = NO_RELATIONS.format(of=listed["of"], listed=len(clients))
    dataset, timing = results["dataset"], results["timing"]
    paper, settings = None, []
    try:
        if not unknown:
            paper = published_score(configuration(values), results["variant"], dataset)
            settings = settings_of(values, results["variant"])
    except ValueError as error:  # a value is outside today's range
        unknown = str(error)
    return {
        "path": str(path),
        "name": path.absolute().name,
        "method": results["variant"],
        "data": dataset["name"],
        "source": dataset["source"],
        "extent": dataset["extent"],
        "seed": results["seed"],
        "rounds": results["rounds"],
        "metric": metric,
        "factor": factor,
        "unit": unit,
        "higher": results["higher_is_better"],
        "diverged": results["diverged"],
        "results": results,
        "published": paper and {"mean": paper.mean, "spread": paper.spread, "unit": unit},
        "main": results["scores"]
        and {key: results["scores"]["final"]["P"][key] for key in SUMMARY},
        "clients": clients,
        "scores": _scores(results, listed),
        "sample": result_tables.sample_text(results),
        "stopped": result_tables.stopped_text(results),
        "map": None if why_no_map else map_of(described, results.get("allocation")),
        "why_no_map": why_no_map,
        "curve": _curve(rows),
        "labels": _labels(described),
        "allocation": results.get("allocation"),
        "new_clients": _new_clients(results),
        "attack": _attack(results, clients, listed),
        "privacy": result_tables.privacy_rows(results),
        "timing": timing,
        "traffic": _traffic(results, values),
        "device": results.get("device", ""),
        "versions": results.get("versions", {}),
        "commit": results.get("git_commit"),
        "settings": settings,
        "unknown": unknown and f"The defaults are not known here: {unknown}.",
    }


def in_readable_units(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs without the unit of thousandths where a run of the same data has a score above 1."""
    large = {
        (run["data"], run["metric"])
        for run in runs
        if run["main"] and run["unit"] == THOUSANDTHS and run["main"]["mean"] > 1
    }
    plain = {"factor": 1, "unit": ""}
    return [run | plain if (run["data"], run["metric"]) in large else run for run in runs]


def _clients(results, described):
    """Name, kind and sizes of each client, those that joined later last."""
    if described is not None:
        kept = ("name", "new", "malicious", "examples")
        trained, listed = result_tables.rounds_by_client(results) or {}, described.get("listed")
        ids = listed["ids"] if listed else range(len(described["clients"]))
        return [
            {key: client[key] for key in kept}
            | {"trained": None if client["new"] else trained.get(i)}
            for i, client in zip(ids, described["clients"], strict=True)
        ]
    scores, new = results["scores"], results["new_clients"] or {"clients": []}
    attack = results["attack"] or {}
    training = len(scores["final"]["P"]["per_client"]) if scores else 0
    if sample := results.get("sample"):
        training = sample["of"]
    malicious = set(attack.get("ids", ()))
    names = [f"client {i}" for i in range(training)] + new["clients"]
    return [
        {"name": name, "new": i >= training, "malicious": i in malicious, "examples": {}}
        | {"trained": None}
        for i, name in enumerate(names)
    ]


def _scores(results, listed):
    """Test scores of all clients at each point after the last round; None if it diverged.

    Those of new clients are the ones after their last round, None if they diverged. Those of
    clients that were not scored are None, or left out as they are in the list `listed`.
    """
    if results["scores"] is None:
        return None
    sample = results.get("sample")

    def of_all(scored):
        if sample is None or listed:
            return scored
        places = dict(zip(sample["ids"], scored, strict=True))
        return [places.get(i) for i in range(sample["of"])]

    new = results["new_clients"] or {"clients": [], "curve": [], "diverged_at": -1}
    joined = new["curve"][-1] if new["curve"] and new["diverged_at"] < 0 else None
    return {
        point: of_all(results["scores"]["final"][point]["per_client"])
        + (joined[point]["per_client"] if joined else [None] * len(new["clients"]))
        for point in POINTS
    }


def _points(scores):
    """Mean and worst decile at each point that was evaluated, if all scores are finite."""
    return {
        point: [scores[point]["mean"], scores[point]["worst_decile"]]
        for point in POINTS
        if point in scores and scores[point]["mean"] is not None
    }


def _curve(rows):
    """The evaluations on the test split, or on validation where the test was not evaluated."""
    split = "test" if any("test" in row for row in rows) else "val"
    curve = [{"x": row["round"], **_points(row[split])} for row in rows if split in row]
    return {"split": {"test": "test", "val": "validation"}[split], "rows": curve}


def _new_clients(results):
    new = results["new_clients"]
    if not new:
        return None
    rows = [{"x": row["rounds"], **_points(row)} for row in new["curve"]]
    return {"rows": rows, "diverged_at": new["diverged_at"], "count": len(new["clients"])}


def _labels(described):
    """The number of training examples of each client with each label."""
    if described is None or any(not client["labels"] for client in described["clients"]):
        return None
    return {
        "names": list(map(str, described["labels"] or range(described["outputs"]))),
        "counts": [client["labels"]["train"] for client in described["clients"]],
    }


def _attack(results, clients, listed):
    """Mean scores of benign and of malicious clients, and the rejected uploads.

    Benign clients are also split by the share of malicious ones among their neighbours.
    """
    attack, scores = results["attack"], _scores(results, listed)
    rejected, defence = results.get("rejected"), results.get("defence")
    if not attack and not defence:
        return None
    kinds = {}
    for kind, key, malicious in (("benign", "honest", False), ("malicious", "malicious", True)):
        rows = [
            i
            for i, c in enumerate(clients)
            if c["malicious"] == malicious and not c["new"]
            if not scores or scores["P"][i] is not None
        ]
        kinds[kind] = {
            "clients": len(rows),
            "scores": scores
            and rows
            and {point: sum(scores[point][i] for i in rows) / len(rows) for point in POINTS},
            "rejected": rejected and rejected[key],
        }
    for part in (attack or {}).get("benign_by_malicious_neighbours") or ():
        ids, share = part["ids"], part["share"]
        parts = [rejected["per_client"][i] for i in ids] if rejected else []
        parts = [part for part in parts if part is not None]
        kinds[f"benign, {'no neighbour' if share == 'none' else share} malicious"] = {
            "clients": len(ids),
            "scores": part["scores"],
            "rejected": sum(parts) / len(parts) if parts else None,
        }
    success = attack and attack.get("success")
    return {
        "attack": attack and attack["name"],
        "defence": defence,
        "kinds": kinds,
        "success": success,
    }


def _traffic(results, values):
    """Bytes per client and round, and of all clients in all rounds; what compressed them.

    A run that diverged has no total: its results do not have the number of its rounds.
    """
    sent = results["communication"]
    total = None
    if not results["diverged"]:
        total = finished_runs.bytes_sent(results, values, results["rounds"])
    compressed = values.get("compression.name", "")
    traffic = {"up": sent["up_bytes"], "down": sent["down_bytes"], "total": total}
    return traffic | {"compressed": compressed}


def settings_of(values: dict[str, Any], variant: str) -> list[dict[str, Any]]:
    """The fields in which a run differs from the configuration of its data set and method.

    For each these are its ``name``, ``value`` and ``default``.
    """
    fields = fields_of(values)
    defaults = {name: field.default for name, field in fields.items()}
    if values["data.name"] in PRESETS:
        known = values["algorithm.name"].replace("_", "-")
        method = variant if variant in methods() else known
        defaults |= values_of(PRESETS[values["data.name"]](method))[0]
    return [
        {"name": name, "value": value, "default": defaults[name]}
        for name, value in sorted(values.items())
        if value != defaults[name] and name not in PATHS | {"seed"}
    ]
