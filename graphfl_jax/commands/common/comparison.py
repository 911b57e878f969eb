"""Runs in groups, with means over seeds and paired tests over clients.

A group, or setting, is a data set and a configuration without its seed. Two are paired if both
have runs with the same seed on the same split of the same data. The scores of a client are then
averaged over these seeds, and Wilcoxon's signed-rank test compares the clients' scores of the
two settings.
"""

import itertools

import numpy as np

from graphfl_jax.commands.common.finished_runs import (
    FinishedRun,
    bytes_sent,
    fitting,
    read_rows,
)
from graphfl_jax.commands.common.result_tables import sample_text
from graphfl_jax.commands.common.statistics import over_seeds, wilcoxon_p
from graphfl_jax.evaluation import POINTS
from graphfl_jax.intervals import half_width


def comparison(runs: list[FinishedRun], *, target: float | None = None) -> dict:
    """What a comparison of at least two runs holds, as JSON.

    Args:
      target: a mean test score at P.

    Returns:
      ``settings``, for each its ``name``, ``method``, ``data``, their ``source`` and ``extent``
      as in results.json, ``metric``, ``higher_is_better``, ``runs`` (folders), ``seeds``,
      ``data_sha256``, the digest of the data with each of them, the number of runs whose
      training ``diverged``, as text which ``sample`` of the clients was scored, its values of
      the ``fields`` that differ between settings, the mean ``epsilon`` of differential privacy,
      None if it is not known or there is none, the ``scores`` at G, L and P as `over_seeds`
      gives them, None if a run diverged, and such scores of further ``metrics`` by name, None
      where a metric is undefined; ``fields``, the
      names of these fields; ``pairs``, with ``first`` and ``second``, their common ``seeds``,
      the number of ``clients``, and ``points``: at each the mean ``difference`` of
      second - first, the ``half_width`` of its 95 % interval over clients, the numbers of
      clients for which the second is ``better`` and ``worse``, ``p`` of the test, and
      ``p_holm``, which Holm's method corrects for the number of pairs; ``unpaired``, the
      pairs without a test and why; and ``target``. With a target, settings also have
      ``reached``, see `reach`, for each seed.

    Raises:
      ValueError: two runs have the same configuration and seed.
    """
    by_setting = {}
    for run in runs:
        by_seed = by_setting.setdefault(run.setting, {})
        if (other := by_seed.get(run.results["seed"])) is not None:
            digests = {same.results["dataset"]["sha256"] for same in (run, other)}
            data = ", and other data" if len(digests) > 1 else ""
            raise ValueError(
                f"folders={run.path} has the configuration and the seed of {other.path}{data}; "
                f"leave one of them out"
            )
        by_seed[run.results["seed"]] = run
    groups = [dict(sorted(by_seed.items())) for by_seed in by_setting.values()]
    fields = differing([next(iter(by_seed.values())).settings for by_seed in groups])
    settings = [
        _setting(name, by_seed, fields)
        for name, by_seed in zip(_names(groups), groups, strict=True)
    ]
    pairs, unpaired = _pairs(settings, groups)
    if target is not None:
        for setting, by_seed in zip(settings, groups, strict=True):
            setting["reached"] = [reach(run, target) for run in by_seed.values()]
    parts = {"fields": fields, "settings": settings, "pairs": pairs, "unpaired": unpaired}
    return parts | {"target": target}


def _pairs(settings, groups):
    """The pairs of settings with a test, and those without one."""
    pairs, unpaired = [], []
    for (a, first), (b, second) in itertools.combinations(
        zip(settings, groups, strict=True), 2
    ):
        names = {"first": a["name"], "second": b["name"]}
        why = _why_not(first, second)
        if why:
            unpaired.append(names | {"why": why})
        else:
            pairs.append(names | _pair(first, second, a["higher_is_better"]))
    for point in POINTS:
        corrected = holm([pair["points"][point]["p"] for pair in pairs])
        for pair, p in zip(pairs, corrected, strict=True):
            pair["points"][point]["p_holm"] = p
    return pairs, unpaired


def reach(run: FinishedRun, target: float) -> dict | None:
    """What a run took until the first evaluation with a mean test score at P of the target.

    Returns:
      The ``round``; the ``bytes`` that all clients had sent and received; and the ``seconds``
      of training, in proportion to those of all rounds. None if no evaluation has it, or if
      the run diverged.
    """
    if run.results["diverged"]:
        return None
    results, sign = run.results, 1 if run.results["higher_is_better"] else -1
    for row in read_rows(run.path):
        score = row.get("test", {}).get("P", {}).get("mean")
        if score is not None and sign * score >= sign * target:
            share = row["round"] / results["rounds"]
            return {
                "round": row["round"],
                "bytes": bytes_sent(results, run.fields, row["round"]),
                "seconds": share * results["timing"]["train_s"],
            }
    return None


def data_texts(settings: list[dict]) -> list[str]:
    """The data set of each setting, and whether it is simulated or a part.

    Settings whose data differ although the text is the same also have a digest.
    The seed may decide the data, so only those of a common seed are compared.
    """
    texts = []
    for setting in settings:
        simulated = "simulated" if setting["source"] == "simulated" else ""
        form = ", ".join(filter(None, [simulated, setting["extent"]]))
        texts.append(f"{setting['data']} ({form})" if form else setting["data"])
    digests = [
        dict(zip(setting["seeds"], setting["data_sha256"], strict=True)) for setting in settings
    ]
    distinct = []
    for text, digest_of in zip(texts, digests, strict=True):
        others = [same for other, same in zip(texts, digests, strict=True) if other == text]
        differ = any(
            digest_of[seed] != same[seed] for same in others for seed in digest_of.keys() & same
        )
        distinct.append(f"{text}, data {digest_of[min(digest_of)][:8]}" if differ else text)
    return distinct


def differing(configurations: list[dict]) -> list[str]:
    """The fields that do not have the same value in all configurations."""
    names = dict.fromkeys(itertools.chain.from_iterable(configurations))
    return [
        name
        for name in names
        if any(fields.get(name) != configurations[0].get(name) for fields in configurations[1:])
    ]


def holm(values: list[float]) -> list[float]:
    """P values that Holm's method corrects for their number, in the same order."""
    order = np.argsort(values)
    factors = len(values) - np.arange(len(values))
    corrected = np.minimum(1, np.maximum.accumulate(np.array(values)[order] * factors))
    result = np.empty(len(values))
    result[order] = corrected
    return result.tolist()


def _names(groups):
    """The method of each setting; with a number where several have the same method."""
    methods = [next(iter(by_seed.values())).results["variant"] for by_seed in groups]
    for i, method in enumerate(methods, 1):
        number = methods[:i].count(method)
        yield f"{method} ({number})" if methods.count(method) > 1 else method


def _setting(name, runs, fields):
    first = next(iter(runs.values()))
    private = [run.results.get("privacy") for run in runs.values()]
    epsilons = [privacy and privacy["epsilon"] for privacy in private]
    broken = sum(run.results["diverged"] for run in runs.values())
    scores, metrics = None, {}
    if not broken:
        finals = [run.results["scores"]["final"] for run in runs.values()]
        scores = {
            point: over_seeds([final[point]["mean"] for final in finals]) for point in POINTS
        }
        with fitting(first.path):
            metrics = _metrics([run.results.get("metrics") for run in runs.values()])
    return {
        "name": name,
        "method": first.results["variant"],
        "data": first.results["dataset"]["name"],
        "source": first.results["dataset"]["source"],
        "extent": first.results["dataset"]["extent"],
        "metric": first.results["metric"],
        "higher_is_better": first.results["higher_is_better"],
        "runs": [str(run.path) for run in runs.values()],
        "seeds": list(runs),
        "data_sha256": [run.results["dataset"]["sha256"] for run in runs.values()],
        "diverged": broken,
        "sample": sample_text(first.results),
        "fields": {field: first.fields.get(field) for field in fields},
        "epsilon": None if None in epsilons else float(np.mean(epsilons)),
        "scores": scores,
        "metrics": metrics,
    }


def _metrics(of_runs):
    """Further metrics by name and point: means over seeds, None if a run has none."""
    summaries = {}
    for name in of_runs[0]["P"] if of_runs[0] else ():
        for point in POINTS:
            means = [of_run[point][name]["mean"] for of_run in of_runs]
            defined = None not in means
            summaries.setdefault(name, {})[point] = over_seeds(means) if defined else None
    return summaries


def _why_not(first, second):
    """Why two settings cannot be paired; empty if they can."""
    results, second_results = (next(iter(runs.values())).results for runs in (first, second))
    if results["dataset"]["name"] != second_results["dataset"]["name"]:
        return "their data sets differ"
    if results["metric"] != second_results["metric"]:
        return "their metrics differ"
    if any(run.results["diverged"] for run in (*first.values(), *second.values())):
        return "a run diverged"
    common = first.keys() & second.keys()
    if not common:
        return "no seed is common to both"
    for seed in sorted(common):
        hashes = {runs[seed].results["dataset"]["sha256"] for runs in (first, second)}
        if len(hashes) > 1:
            return f"their data differ with seed {seed}"
        splits = [
            runs[seed].results.get("identity", {}).get("arrays") for runs in (first, second)
        ]
        if None in splits:
            return "a run does not record its split"
        if splits[0] != splits[1]:
            return f"their splits, new clients or attackers differ with seed {seed}"
    runs = (*first.values(), *second.values())
    sizes = {len(run.results["scores"]["final"]["P"]["per_client"]) for run in runs}
    if len(sizes) > 1:
        return "their numbers of clients differ"
    samples = [run.results.get("sample") for run in runs]
    scored = {tuple(sample["ids"]) if sample else () for sample in samples}
    return "they score other clients" if len(scored) > 1 else ""


def _pair(first, second, higher_is_better):
    seeds = sorted(first.keys() & second.keys())
    points = {}
    for point in POINTS:
        means = []  # of each setting: of every client over seeds [N]
        for runs in (first, second):
            finals = [runs[seed].results["scores"]["final"][point] for seed in seeds]
            means.append(np.mean([final["per_client"] for final in finals], axis=0))
        change = _differences(*means)
        gain = change if higher_is_better else -change
        points[point] = {
            "difference": float(change.mean()),
            "half_width": half_width(change),
            "better": int(np.sum(gain > 0)),
            "worse": int(np.sum(gain < 0)),
            "p": wilcoxon_p(change),
        }
    return {"seeds": seeds, "clients": len(change), "points": points}


def _differences(first, second):
    """Differences second - first [N], with the same size where only rounding makes it differ.

    Scores are float32. Differences of the same size must be ties of the test, and those of
    equal scores must be 0.
    """
    change = second - first
    rounding = 4 * np.finfo(np.float32).eps * max(np.abs(first).max(), np.abs(second).max())
    sizes, size = np.abs(change), 0.0
    for i in np.argsort(sizes):
        if sizes[i] > size + rounding:
            size = sizes[i]
        sizes[i] = size
    return np.sign(change) * sizes
