"""The results of a run: rows of metrics, and scores."""

import json
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment, variant_of
from graphfl_jax.core import Task
from graphfl_jax.data.federation import Federation
from graphfl_jax.evaluation import POINTS, Evaluated
from graphfl_jax.metrics import OwnUnits, metric_summary
from graphfl_jax.program import Log
from graphfl_jax.rounds import Group
from graphfl_jax.runs.attack_results import attack_summary, rejections
from graphfl_jax.runs.summaries import mean_scores, summaries


def new_seconds() -> dict[str, float]:
    """Seconds spent on each part of a run, all 0."""
    return {"compile": 0.0, "train": 0.0, "evaluate": 0.0, "new_clients": 0.0}


def results_of(
    config: ConfigDict,
    experiment: Experiment,
    rows: list[dict],
    final: Evaluated | None,
    new_clients: dict | None,
    *,
    diverged: bool,
    seconds: dict[str, float],
    played: int,
    traffic: list[tuple[int, int]],
    where: dict,
    identity: dict,
    accepted_changes: Sequence[dict] = (),
) -> dict:
    """The content of results.json. A run that diverged has no score.

    Args:
      config: of the run.
      experiment: of the run.
      rows: its evaluations, as in `single.Result`.
      final: everything after the last round; None for a run that diverged.
      new_clients: their scores from `new_client_scores`, if there are any.
      diverged: whether the run diverged.
      seconds: from `new_seconds`, with the times added.
      played: rounds.
      traffic: from `session.traffic_of`.
      where: the `environment` of the run.
      identity: of the run, see the module `identity`.
      accepted_changes: other identities under which some of its rounds were played.
    """
    federation, task = experiment.federation, experiment.model.task
    scores = errors = labels = attack = allocation = rejected = architectures = None
    metrics = None
    if config.attack.name:
        attack = attack_summary(config, experiment, None if diverged else final.scores)
    if not diverged:
        allocation = _rounded(final.allocation) if len(final.allocation) else None
        if len(final.rejected):
            rejected = rejections(experiment, final.rejected)
        scores = final_scores(rows, final.scores, task)
        for split in federation.data.shared:
            scores[split] = summaries(final.scores[split], task)
        if isinstance(federation.units, OwnUnits):
            details = {point: federation.units.errors(final.extras[point]) for point in POINTS}
            errors = {"units": federation.units.name, **details}
        elif task.summarize:
            details = {point: task.summarize(final.extras[point]) for point in POINTS}
            if federation.units:
                errors = {"units": federation.units.name, **details}
            else:
                labels = details
        if task.metrics:
            metrics = metric_summaries(final.metrics)
        if len(experiment.groups) > 1:
            architectures = architecture_scores(experiment, final.scores, traffic)
    sizes = [group.cohort_size for group in experiment.groups]
    down, up = np.average(traffic, axis=0, weights=sizes)
    steps = played * sum(sizes) * config.local_steps
    return {
        "algorithm": config.algorithm.name,
        "variant": variant_of(config),
        "dataset": {
            "name": federation.name,
            "source": federation.source,
            "extent": federation.extent,
            "sha256": federation.sha256,
        },
        "seed": config.seed,
        "rounds": config.rounds,
        "hparams": experiment.hparams,
        "diverged": diverged,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "scores": scores,
        "metrics": metrics,
        "errors": errors,
        "labels": labels,
        "scaling": federation.scaling and federation.scaling.as_json(),
        "new_clients": None if diverged else new_clients,
        "attack": attack,
        "defence": config.defence.name or None,
        "rejected": rejected,
        "allocation": allocation,
        "architectures": architectures,
        "timing": {
            **{f"{what}_s": spent for what, spent in seconds.items()},
            "client_steps_per_s": steps / seconds["train"],
        },
        "communication": {"up_bytes": round(up), "down_bytes": round(down)},
        **where,
        "identity": identity,
        "accepted_changes": list(accepted_changes),
    }


def row_of(played: int, log: Log, evaluated: Evaluated) -> dict:
    """One evaluation: ``{"round", "train": {name: []}, "scores": {split: {point: [N]}}}``.

    It has also ``"metrics"`` of `Evaluated`, if there are any, and ``"allocation"`` [N, N], if
    the method has one.
    """
    row = {"round": np.int32(played), "train": log.metrics, "scores": evaluated.scores}
    if any(evaluated.metrics.values()):
        row["metrics"] = evaluated.metrics
    return row | ({"allocation": evaluated.allocation} if len(evaluated.allocation) else {})


def row_fields(row: dict, task: Task) -> dict:
    """One evaluation of `row_of`, as JSON has it.

    Returns:
      ``round``; ``train``, the metrics of the training by name; for each split the
      `metrics.summary` of its scores at each point; and ``metrics``, as `metric_summaries`, and
      ``allocation``, if there are any.
    """
    fields = {
        "round": int(row["round"]),
        "train": {name: float(value) for name, value in row["train"].items()},
        **{split: summaries(scores, task) for split, scores in row["scores"].items()},
    }
    if "metrics" in row:
        fields["metrics"] = metric_summaries(row["metrics"])
    if "allocation" in row:
        fields["allocation"] = _rounded(row["allocation"])
    return fields


def row_line(row: dict, task: Task) -> str:
    """One evaluation of `row_of` as a line of JSON."""
    return json.dumps(row_fields(row, task), allow_nan=False) + "\n"


def metric_summaries(metrics: dict) -> dict:
    """Each `metrics.metric_summary` by point and name, of `Evaluated.metrics`."""
    return {
        point: {name: metric_summary(**values) for name, values in own.items()}
        for point, own in metrics.items()
    }


def _rounded(allocation) -> list[list[float]]:
    """Shares with six digits after the point."""
    return np.round(np.asarray(allocation, np.float64), 6).tolist()


def final_scores(rows: list[dict], final: dict, task: Task) -> dict:
    """Summaries of scores of the last round, and of the round with the best validation score.

    ``final`` and ``validation`` are the test and the validation scores of the last round, and
    ``best_val`` the test scores of the best one: at P, the predictor that a client would use,
    it has the best mean over clients on validation. Among equals, the earliest round counts.
    Without a validation split, ``validation`` and ``best_val`` are None. ``best_val`` is also
    None if the evaluations before the last round have no test scores or not P.

    Args:
      rows: as in `single.Result`.
      final: all scores after the last round, {split: {point: [N]}}.
    """
    best, evaluated = None, rows[0]["scores"]
    if "test" in evaluated and "P" in evaluated.get("val", {}):
        means = np.array([row["scores"]["val"]["P"].mean(dtype=np.float64) for row in rows])
        chosen = rows[int(means.argmax() if task.higher_is_better else means.argmin())]
        best = {
            "round": int(chosen["round"]),
            **summaries(chosen["scores"]["test"], task),
        }
    validation = summaries(final["val"], task) if "val" in final else None
    return {
        "final": summaries(final["test"], task),
        "validation": validation,
        "best_val": best,
    }


def new_client_scores(
    federation: Federation, scores: Iterable[dict], task: Task, groups: Sequence[Group] = ()
) -> dict:
    """Test scores of clients that joined after training, as they adapt.

    Args:
      federation: its last clients are the new ones.
      scores: ``{split: {point: [new clients]}}`` after 0, 1, ... of their rounds.
      task: of the scores.
      groups: `Experiment.joined`.

    Returns:
      ``clients``, their names; ``curve``, for every number of rounds the summaries at G, L and
      P, where the first, before any round, is zero-shot at G; and ``diverged_at``, the number
      of rounds after which a score was not finite, where the curve ends, or -1. With several
      architectures also ``architectures``: by name the ``clients`` and their numbers ``ids``,
      whether the architecture has been ``trained``, and as ``curve`` the means over them.
    """
    names, training = federation.clients, len(federation.clients) - federation.new_clients
    result = {
        "clients": list(names[training:]),
        "curve": [],
        "diverged_at": -1,
    }
    parts = {}
    for group in groups if len(groups) > 1 else ():
        ids = group.ids[group.ids >= training]
        if len(ids):
            parts[group.name] = {
                "clients": [names[i] for i in ids],
                "ids": ids.tolist(),
                "trained": len(ids) < len(group.ids),
                "curve": [],
            }
    if parts:
        result["architectures"] = parts
    for played, after in enumerate(scores):
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after)):
            result["diverged_at"] = played
            break
        result["curve"].append({"rounds": played, **summaries(after["test"], task)})
        for part in parts.values():
            means = mean_scores(after["test"], np.array(part["ids"]) - training, task)
            part["curve"].append({"rounds": played, **means})
    return result


def architecture_scores(experiment: Experiment, final: dict, traffic: list) -> dict:
    """Mean scores of the clients of each architecture after the last round.

    Args:
      experiment: of the run.
      final: as for `final_scores`.
      traffic: from `session.traffic_of`.

    Returns:
      By the name of the architecture: ``clients``, their names; ``ids``, their numbers;
      ``scores``, means over them for each split at G, L and P; and ``up_bytes`` and
      ``down_bytes`` of one of them in a round.
    """
    names, task = experiment.federation.clients, experiment.model.task
    return {
        group.name: {
            "clients": [names[i] for i in group.ids],
            "ids": group.ids.tolist(),
            "scores": {
                split: mean_scores(scores, group.ids, task) for split, scores in final.items()
            },
            "up_bytes": up,
            "down_bytes": down,
        }
        for group, (down, up) in zip(experiment.groups, traffic, strict=True)
    }
