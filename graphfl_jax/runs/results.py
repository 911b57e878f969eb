"""The results of a run."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment
from graphfl_jax.configs.base import variant_of
from graphfl_jax.core import Task
from graphfl_jax.data.federation import Federation
from graphfl_jax.evaluation import POINTS, Evaluated
from graphfl_jax.metrics import OwnUnits
from graphfl_jax.rounds import Group
from graphfl_jax.runs.attack_results import attack_summary, rejections
from graphfl_jax.runs.rows import mean_scores, metric_summaries, round_shares, summaries

# Parts of the results that a run has only if it did not diverge, and not every run has.
SCORED = ("scores", "metrics", "errors", "labels", "rejected", "allocation", "architectures")


def new_seconds() -> dict[str, float]:
    """Seconds spent on each part of a run, all 0."""
    return {"compile": 0.0, "train": 0.0, "evaluate": 0.0, "new_clients": 0.0}


class Course(NamedTuple):
    """The course of a run, from which its results are made."""

    rows: list[dict]  # its evaluations, as in `single.Result`
    final: Evaluated | None  # everything after the last round; None for a run that diverged
    new_clients: dict | None  # their scores from `new_client_scores`, if there are any
    rounds: int  # that were played
    seconds: dict[str, float]  # from `new_seconds`, with the times added
    traffic: list[tuple[int, int]]  # from `session.traffic_of`


def results_of(
    config: ConfigDict, experiment: Experiment, course: Course, origin: dict
) -> dict:
    """The content of results.json. A run that diverged has no score.

    Args:
      config: of the run.
      experiment: of the run.
      course: of the run.
      origin: the `environment` of the run, its ``identity``, and ``accepted_changes``, other
        identities under which some of its rounds were played.
    """
    federation, task, final = experiment.federation, experiment.model.task, course.final
    scored = dict.fromkeys(SCORED)
    if final is not None:
        scored |= _parts_with_scores(experiment, course)
    attack = None
    if config.attack.name:
        attack = attack_summary(config, experiment, final and final.scores)
    sizes = [group.cohort_size for group in experiment.groups]
    down, up = np.average(course.traffic, axis=0, weights=sizes)
    steps = course.rounds * sum(sizes) * config.local_steps
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
        "diverged": final is None,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "scores": scored["scores"],
        "metrics": scored["metrics"],
        "errors": scored["errors"],
        "labels": scored["labels"],
        "scaling": federation.scaling and federation.scaling.as_json(),
        "new_clients": None if final is None else course.new_clients,
        "attack": attack,
        "defence": config.defence.name or None,
        "rejected": scored["rejected"],
        "allocation": scored["allocation"],
        "architectures": scored["architectures"],
        "timing": {
            **{f"{what}_s": spent for what, spent in course.seconds.items()},
            "client_steps_per_s": steps / course.seconds["train"],
        },
        "communication": {"up_bytes": round(up), "down_bytes": round(down)},
        **origin,
    }


def _parts_with_scores(experiment, course):
    """What a run has only if it did not diverge, by names of `SCORED`."""
    federation, task, final = experiment.federation, experiment.model.task, course.final
    parts = {"scores": final_scores(course.rows, final.scores, task)}
    for split in federation.data.shared:
        parts["scores"][split] = summaries(final.scores[split], task)
    if isinstance(federation.units, OwnUnits):
        errors = {point: federation.units.errors(final.extras[point]) for point in POINTS}
        parts["errors"] = {"units": federation.units.name, **errors}
    elif task.summarize:
        details = {point: task.summarize(final.extras[point]) for point in POINTS}
        if federation.units:
            parts["errors"] = {"units": federation.units.name, **details}
        else:
            parts["labels"] = details
    if task.metrics:
        parts["metrics"] = metric_summaries(final.metrics)
    if len(final.rejected):
        parts["rejected"] = rejections(experiment, final.rejected)
    if len(final.allocation):
        parts["allocation"] = round_shares(final.allocation)
    if len(experiment.groups) > 1:
        traffic = course.traffic
        parts["architectures"] = architecture_scores(experiment, final.scores, traffic)
    return parts


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
        row = rows[int(means.argmax() if task.higher_is_better else means.argmin())]
        best = {"round": int(row["round"]), **summaries(row["scores"]["test"], task)}
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
