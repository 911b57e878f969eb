"""What a run records: its description, its evaluations, its results, and what attacks did."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.build import Experiment
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.fields import POISSON
from graphfl_jax.core import FederatedData, Task
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation
from graphfl_jax.data.overview import label_counts
from graphfl_jax.evaluation import POINTS, Evaluated, not_finite
from graphfl_jax.intervals import half_width
from graphfl_jax.metrics import OwnUnits, metric_summary, summary
from graphfl_jax.program import Log, Participation
from graphfl_jax.rounds import Group, scored_ids
from graphfl_jax.wire.accounting import privacy_of
from graphfl_jax.wire.attacks import Attackers

DESCRIPTION = "federation.json"  # the file of `description_of`
DESCRIBED = 10_000  # clients of the largest federation of which it lists all
# Parts of the results that a run has only if it played all rounds, and not every run has.
SCORED = ("scores", "means_by_examples", "metrics", "errors", "labels")
SCORED += ("rejected", "allocation", "architectures", "embeddings_moved", "simulated_seconds")
# Names of shares of malicious clients among a client's neighbours, and the largest such share.
NEIGHBOURS = {"none": 0.0, "up to half": 0.5, "more than half": 1.0}


def new_seconds() -> dict[str, float]:
    """Seconds spent on each part of a run, all 0."""
    return {"compile": 0.0, "train": 0.0, "evaluate": 0.0, "new_clients": 0.0}


class Course(NamedTuple):
    """The course of a run, from which its results are made."""

    rows: list[dict]  # its evaluations, as in `single.Result`
    participation: Participation  # of all its rounds
    final: Evaluated | None  # everything after the last round; None for a run that ended before
    new_clients: dict | None  # their scores from `new_client_scores`, if there are any
    rounds: int  # that were played
    seconds: dict[str, float]  # from `new_seconds`, with the times added
    traffic: list[tuple[float, float]]  # from `session.traffic_of`
    stopped: str = ""  # why it ended before its last round, see `stopping.stops`


def results_of(
    config: ConfigDict, experiment: Experiment, course: Course, origin: dict
) -> dict:
    """The content of results.json. All scores of a run that ended before its end are NaN.

    Args:
      origin: the `environment` of the run, its ``identity``, and ``accepted_changes``, other
        identities under which some of its rounds were played.
    """
    federation, task, final = experiment.federation, experiment.model.task, course.final
    scored, ids = dict.fromkeys(SCORED), ids_scored(experiment)
    if final is None:
        scored["scores"] = no_scores(len(ids), federation.data, task)
    else:
        scored |= _parts_with_scores(experiment, course)
        if final.moved is not None and not config.init_from:  # which began elsewhere
            scored["embeddings_moved"] = float(final.moved)
    attack, stopped = None, (final and course.stopped) or None
    if config.attack.name:
        attack = attack_summary(config, experiment, final and final.scores)
    sizes = [group.cohort_size for group in experiment.groups]
    training = federation.training_clients
    most = int(max(course.participation.trained, default=0))
    in_mean = min(config.cohort_size, training) if config.cohort == POISSON else sum(sizes)
    steps = course.rounds * in_mean * steps_of_client(config, federation.data)
    down, up = np.average(course.traffic, axis=0, weights=sizes)
    return {
        "algorithm": config.algorithm.name,
        "variant": variant_of(config),
        "dataset": _facts_of(federation),
        "seed": config.seed,
        "rounds": course.rounds if stopped else config.rounds,
        "stopped": stopped,
        "hparams": experiment.hparams,
        "diverged": final is None or bool(not_finite(final.scores, ("P",)).any()),
        "not_finite": not_finite_clients(federation.clients, course, ids),
        "rounds_trained": rounds_trained(course.participation, ids),
        "trained_only": scores_of_trained(course, ids),
        "sample": sample_of(experiment, final),
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        **scored,
        "scaling": federation.scaling and federation.scaling.as_json(),
        "new_clients": None if final is None else course.new_clients,
        "attack": attack,
        "defence": config.defence.name or None,
        "privacy": privacy_of(config, training, most) if config.privacy.name else None,
        "timing": {
            **{f"{what}_s": spent for what, spent in course.seconds.items()},
            "client_steps_per_s": steps / course.seconds["train"],
        },
        "communication": {
            "up_bytes": round(up),
            "down_bytes": round(down),
            "clients": in_mean,
        },
        **origin,
    }


def _parts_with_scores(experiment, course):
    """What a run has only if it played all its rounds, by names of `SCORED`."""
    federation, task, final = experiment.federation, experiment.model.task, course.final
    parts = {"scores": final_scores(course.rows, final.scores, task)}
    for point, losses in final.losses.items():
        parts["scores"]["validation"][point]["loss"] = _mean(losses)
    counts = np.asarray(federation.data.evals["test"].count)[ids_scored(experiment)]
    parts["means_by_examples"] = {
        point: float(np.average(final.scores["test"][point].astype(np.float64), weights=counts))
        for point in POINTS
    }
    for split in federation.data.shared:
        parts["scores"][split] = summaries(final.scores[split], task)
    if isinstance(federation.units, OwnUnits):
        errors = {
            point: federation.units.errors(final.extras[point], federation.labels)
            for point in POINTS
        }
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
    if jax.tree.leaves(final.seconds):
        parts["simulated_seconds"] = float(final.seconds)
    if len(experiment.groups) > 1:
        traffic = course.traffic
        parts["architectures"] = architecture_scores(experiment, final.scores, traffic)
    return parts


def steps_of_client(config: ConfigDict, data: FederatedData) -> float:
    """The local steps of a client in a round; with epochs, the mean over clients."""
    epochs = config.get("local_epochs", 0)
    if not epochs:
        return config.local_steps
    return float(np.mean(epochs * -(-np.asarray(data.train.count) // config.batch_size)))


def final_scores(rows: list[dict], final: dict, task: Task) -> dict:
    """Summaries of scores of the last round, and of the round with the best validation score.

    ``final`` and ``validation`` are the test and the validation scores of the last round, and
    ``best_val`` the test scores of the best one: at P, the predictor that a client would use,
    it has the best mean over clients on validation. Among equals, the earliest round counts.
    Without a validation split, ``validation`` and ``best_val`` are None. ``best_val`` is also
    None if the evaluations before the last round have no test scores or not P.

    Args:
      rows: as in `single.Result`.
      final: all scores after the last round, {split: {point: [K]}}.
    """
    best, evaluated = None, rows[0]["scores"]
    if "test" in evaluated and "P" in evaluated.get("val", {}):
        means = np.array([row["scores"]["val"]["P"].mean(dtype=np.float64) for row in rows])
        means = means if task.higher_is_better else -means
        row = rows[int(np.where(np.isfinite(means), means, -np.inf).argmax())]
        best = {"round": int(row["round"]), **summaries(row["scores"]["test"], task)}
    validation = summaries(final["val"], task) if "val" in final else None
    return {
        "final": summaries(final["test"], task),
        "validation": validation,
        "best_val": best,
    }


def ids_scored(experiment: Experiment) -> np.ndarray:
    """The ids [K] of the clients that evaluations score, ascending; without new clients."""
    return scored_ids(experiment.groups, len(experiment.federation.data.train.count))


def names_scored(experiment: Experiment) -> tuple[str, ...]:
    """The names of the clients that evaluations score; if it is all, new clients follow."""
    names, ids = experiment.federation.clients, ids_scored(experiment)
    if len(ids) == len(experiment.federation.data.train.count):
        return tuple(names)
    return tuple(names[i] for i in ids)


def sample_of(experiment: Experiment, final: Evaluated | None) -> dict | None:
    """The clients that were scored, if not all were, and how exact the means over them are.

    Returns:
      ``of``, the number of clients; ``ids``, the numbers of those that were scored; and
      ``half_width``, at G, L and P half of the 95 % interval of the mean test score over all
      clients, None for one client or without scores.
    """
    total, ids = len(experiment.federation.data.train.count), ids_scored(experiment)
    if len(ids) == total:
        return None
    widths = dict.fromkeys(POINTS)
    if final is not None:
        test = final.scores["test"]
        widths = {p: half_width(test[p].astype(np.float64), of=total) for p in POINTS}
    return {"of": total, "ids": ids.tolist(), "half_width": widths}


def no_scores(clients: int, data: FederatedData, task: Task) -> dict:
    """`final_scores` of a run without any: NaN for so many clients."""
    missing = np.full(clients, np.nan)
    of_clients = summaries(dict.fromkeys(POINTS, missing), task)
    validation = of_clients if "val" in data.evals else None
    return {"final": of_clients, "validation": validation, "best_val": None}


def not_finite_clients(names: Sequence[str], course: Course, ids: np.ndarray) -> dict | None:
    """The clients that left a number that is not finite; None without any.

    Args:
      names: of all clients.
      ids: from `ids_scored`.

    Returns:
      ``uploads``, by the names of clients the rounds in which each counted as untrained since
      what it kept, sent or reported was not finite; ``first``, the ``client`` and the
      ``round`` of the first of them, None without any; ``scores``, the names of those with a
      score after the last round that is not finite; and ``others``, the means over all others
      of the test scores at G, L and P, None without any.
    """
    rounds, first, final = course.participation.not_finite_rounds(), None, course.final
    broken = np.ones(len(ids), bool) if final is None else not_finite(final.scores)
    if course.participation.since > 0:
        first = {
            "client": names[course.participation.first[1]],
            "round": course.participation.since,
        }
    elif final is not None and not broken.any():
        return None
    means = None
    if not broken.all():
        means = {point: _mean(final.scores["test"][point][~broken]) for point in POINTS}
    return {
        "uploads": {names[i]: count for i, count in rounds.items()},
        "first": first,
        "scores": [] if final is None else [names[i] for i in ids[broken]],
        "others": means,
    }


def rounds_trained(participation: Participation, ids: np.ndarray) -> list[int] | None:
    """The rounds in which each of the K clients that are scored trained; None if unknown.

    They are not known of rounds that were played by a release that did not count them.

    Args:
      ids: from `ids_scored`.
    """
    rounds = participation.rounds_trained(ids)
    return None if (rounds < 0).any() else rounds.tolist()


def scores_of_trained(course: Course, ids: np.ndarray) -> dict | None:
    """The scores of clients that have trained; None unless some have and some have not.

    Args:
      ids: from `ids_scored`; others do not count.

    Returns:
      ``clients``, their number, and ``final``, the means over them of the test scores at G, L
      and P after the last round.
    """
    rounds, final = course.participation.rounds_trained(ids), course.final
    trained = rounds > 0
    if final is None or (rounds < 0).any():
        return None
    if trained.all() or not trained.any():
        return None
    means = {point: _mean(final.scores["test"][point][trained]) for point in POINTS}
    return {"clients": int(trained.sum()), "final": means}


def new_client_scores(
    federation: Federation, scores: Iterable[dict], task: Task, groups: Sequence[Group] = ()
) -> dict:
    """Test scores of clients that joined after training, as they adapt.

    Args:
      federation: its last clients are the new ones.
      scores: ``{split: {point: [new clients]}}`` after 0, 1, ... of their rounds.
      groups: `Experiment.joined`.

    Returns:
      ``clients``, their names; ``curve``, for every number of rounds the summaries at G, L and
      P, where the first, before any round, is zero-shot at G; and ``diverged_at``, the number
      of rounds after which a score was not finite, where the curve ends, or -1. With several
      architectures also ``architectures``: by name the ``clients`` and their numbers ``ids``,
      whether the architecture has been ``trained``, and as ``curve`` the means over them.
    """
    names, training = federation.clients, federation.training_clients
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
      final: as for `final_scores`.
      traffic: from `session.traffic_of`.

    Returns:
      By the name of the architecture: ``clients``, their names; ``ids``, their numbers;
      ``scores``, means over them for each split at G, L and P; and ``up_bytes`` and
      ``down_bytes`` of one of them in a round.
    """
    names, task, result = experiment.federation.clients, experiment.model.task, {}
    scored = ids_scored(experiment)
    for group, (down, up) in zip(experiment.groups, traffic, strict=True):
        rows = np.flatnonzero(np.isin(scored, group.ids))
        result[group.name] = {
            "clients": [names[i] for i in group.ids],
            "ids": group.ids.tolist(),
            "scores": {
                split: mean_scores(scores, rows, task) for split, scores in final.items()
            },
            "up_bytes": up,
            "down_bytes": down,
        }
    return result


# --------------------------------------------------------------------------------- evaluations


def row_of(played: int, log: Log, evaluated: Evaluated) -> dict:
    """One evaluation: ``{"round", "train": {name: []}, "scores": {split: {point: [K]}}}``.

    It has also ``"participation"``, a dictionary, the `Participation` of the rounds since the
    last evaluation, of the clients that took part in them; ``"metrics"`` of `Evaluated`, if
    there are any, ``"simulated_seconds"`` [], if there is a clock, and ``"allocation"`` [N, N],
    if the method has one.
    """
    row = {"round": np.int32(played), "train": log.metrics, "scores": evaluated.scores}
    row["participation"] = log.participation.sparse()._asdict()
    if any(evaluated.metrics.values()):
        row["metrics"] = evaluated.metrics
    if jax.tree.leaves(evaluated.seconds):
        row["simulated_seconds"] = evaluated.seconds
    return row | ({"allocation": evaluated.allocation} if len(evaluated.allocation) else {})


def row_fields(row: dict, task: Task, clients: Sequence[str]) -> dict:
    """One evaluation of `row_of`, as a line of metrics.jsonl has it, with NaN for null.

    Returns:
      ``round``; ``train``, the metrics of the training by name; for each split the
      `metrics.summary` of its scores at each point; and ``metrics``, as `metric_summaries`,
      ``simulated_seconds``, ``allocation``, and ``not_finite``, by the names of clients the
      rounds since the last evaluation in which each counted as untrained since a number was
      not finite, if there are any.
    """
    fields = {
        "round": int(row["round"]),
        "train": {name: float(value) for name, value in row["train"].items()},
        **{split: summaries(scores, task) for split, scores in row["scores"].items()},
    }
    if "metrics" in row:
        fields["metrics"] = metric_summaries(row["metrics"])
    if "simulated_seconds" in row:
        fields["simulated_seconds"] = float(row["simulated_seconds"])
    if "allocation" in row:
        fields["allocation"] = round_shares(row["allocation"])
    rounds = Participation(**row["participation"]).not_finite_rounds()
    if rounds:
        fields["not_finite"] = {clients[i]: count for i, count in rounds.items()}
    return fields


def row_line(row: dict, task: Task, clients: Sequence[str]) -> str:
    """One evaluation of `row_of` as a line of JSON."""
    return json.dumps(with_null(row_fields(row, task, clients)), allow_nan=False) + "\n"


def as_json(results: dict) -> dict:
    """Results as JSON has them: null for NaN, and for the scores of a run that has none."""
    results = with_null(results)
    final = results["scores"]["final"]
    if not any(score is not None for point in POINTS for score in final[point]["per_client"]):
        results["scores"] = None
    return results


def from_json(results: dict) -> dict:
    """Results of `as_json` with NaN for null in their scores, if there are any."""

    def with_nan(value):
        if isinstance(value, dict):
            return {key: with_nan(part) for key, part in value.items()}
        if isinstance(value, list):
            return [with_nan(part) for part in value]
        return np.nan if value is None else value

    if not isinstance(results.get("scores"), dict):
        return results
    scores = {name: part and with_nan(part) for name, part in results["scores"].items()}
    return results | {"scores": scores}


def with_null(value: Any) -> Any:
    """A value of JSON with None for each number that is not finite."""
    if isinstance(value, dict):
        return {key: with_null(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_null(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def summaries(scores: dict, task: Task) -> dict:
    """`metrics.summary` of the clients' scores at each point."""
    return {
        point: summary(scores[point], higher_is_better=task.higher_is_better)
        for point in POINTS
        if point in scores
    }


def mean_scores(scores: dict, rows: np.ndarray, task: Task) -> dict[str, float]:
    """The means of some clients' scores at each point.

    Args:
      scores: {point: [K]}.
      rows: [n] int, of these clients.
    """
    at_points = summaries(tree.take(scores, rows), task)
    return {point: values["mean"] for point, values in at_points.items()}


def metric_summaries(metrics: dict) -> dict:
    """Each `metrics.metric_summary` by point and name, of `Evaluated.metrics`."""
    return {
        point: {name: metric_summary(**values) for name, values in at_point.items()}
        for point, at_point in metrics.items()
    }


def round_shares(allocation: np.ndarray) -> list[list[float]]:
    """Shares [N, N] with six digits after the point."""
    return np.round(np.asarray(allocation, np.float64), 6).tolist()


# ------------------------------------------------------------------------ attacks and defences


def malicious_clients(experiment: Experiment) -> np.ndarray:
    """Whether each of the N clients attacks."""
    federation = experiment.federation
    rank = federation.data.attack_rank
    if rank is None or "attack_ratio" not in experiment.hparams:
        return np.zeros(len(federation.data.train.count), bool)
    training = federation.training_clients
    attackers = Attackers(jnp.float32(experiment.hparams["attack_ratio"]), training)
    return np.asarray(attackers.among(np.asarray(rank)))


def rejections(experiment: Experiment, rejected: np.ndarray) -> dict:
    """The share of a client's uploads that were rejected, of benign and malicious clients.

    Args:
      rejected: [N], from `Evaluated`, -1 for clients that have been in no cohort; with a
        transductive graph, new clients follow.

    Returns:
      ``honest`` and ``malicious``, means over those of these clients that have been in a
      cohort, None without any, and ``per_client``, None for all others.
    """
    malicious = malicious_clients(experiment)
    rejected = rejected[: len(malicious)]
    shares = {"honest": rejected[~malicious], "malicious": rejected[malicious]}
    means = {
        name: float(np.mean(values[values >= 0])) if (values >= 0).any() else None
        for name, values in shares.items()
    }
    per_client = np.asarray(rejected, np.float64).round(6).tolist()
    return means | {"per_client": [None if share < 0 else share for share in per_client]}


def attack_summary(config: ConfigDict, experiment: Experiment, final: dict | None) -> dict:
    """Which clients attacked a run, and the effect after the last round.

    Args:
      final: as for `final_scores`; None for a run that diverged.

    Returns:
      ``name``; ``malicious``, the names of the attackers, ``ids``, their numbers, and
      ``ratio``, their share; ``benign``, the test scores of all others at G, L and P;
      ``benign_by_malicious_neighbours``, see `by_malicious_neighbours`, None without relations;
      and ``success``, the share of triggered images that these classify as the target, as
      means over clients at G, L and P, None without triggers.
    """
    federation = experiment.federation
    training = federation.training_clients
    malicious, scored = malicious_clients(experiment), ids_scored(experiment)
    benign = ~malicious[scored]
    ids = np.flatnonzero(malicious).tolist()
    result = {
        "name": config.attack.name,
        "ratio": len(ids) / training,
        "malicious": [federation.clients[i] for i in ids],
        "ids": ids,
        "benign": None,
        "benign_by_malicious_neighbours": None,
        "success": None,
    }
    if final is None or not benign.any():
        return result
    scores = {point: np.asarray(final["test"][point])[benign] for point in POINTS}
    result["benign"] = summaries(scores, experiment.model.task)
    if len(federation.data.graph.senders):
        result["benign_by_malicious_neighbours"] = by_malicious_neighbours(
            federation.data.graph, malicious, scored, final["test"], experiment.model.task
        )
    if "triggered" in final:
        test = tree.take(federation.data.evals["test"], scored)
        real = np.arange(test.y.shape[1]) < test.count[:, None]
        # Clients whose images all have the target label anyway do not count.
        counted = benign & (real & (test.y != config.attack.target)).any(axis=1)
        if counted.any():
            result["success"] = {
                point: float(np.mean(np.asarray(final["triggered"][point])[counted]))
                for point in POINTS
            }
    return result


def by_malicious_neighbours(
    graph, malicious: np.ndarray, scored: np.ndarray, scores: dict, task: Task
) -> list:
    """Mean scores of benign clients by the share of malicious ones among their neighbours.

    Args:
      graph: relations between the N clients; with a transductive graph, new clients follow.
      malicious: [N] bool.
      scored: from `ids_scored`, [K].
      scores: {point: [K]}.

    Returns:
      For each of `NEIGHBOURS` that has such clients, its name as ``share``; their ``ids``;
      and ``scores``, means over them at each point.
    """
    shares = relations.shares_among_neighbours(graph, np.flatnonzero(malicious))
    places = np.searchsorted(list(NEIGHBOURS.values()), shares[: len(malicious)])
    rows = []
    for place, name in enumerate(NEIGHBOURS):
        members = np.flatnonzero((~malicious & (places == place))[scored])
        if len(members):
            means = mean_scores(scores, members, task)
            rows.append({"share": name, "ids": scored[members].tolist(), "scores": means})
    return rows


def check_attacked(*runs: tuple[ConfigDict, Experiment]) -> None:
    """Refuses runs with an attack and without attackers.

    Beside runs with attackers, some may have the share 0, to compare with.

    Raises:
      ValueError: a run has an attack, and no attackers where some should be.
    """
    idle = [
        config
        for config, experiment in runs
        if config.attack.name and not malicious_clients(experiment).any()
    ]
    attacked = sum(bool(config.attack.name) for config, _ in runs)
    for config in idle:
        ratio = config.hparams.attack_ratio
        if ratio or len(idle) == attacked:
            raise ValueError(
                f"attack.name={config.attack.name!r} has no attackers with "
                f"hparams.attack_ratio={ratio:g}; set a larger one, or --config.attack.clients"
            )


# ---------------------------------------------------------------- for readers without the data


def description_of(experiment: Experiment) -> dict[str, Any]:
    """The content of federation.json.

    Returns:
      Facts of the data set; ``clients``, with for each its name, its numbers of ``examples``
      and of each of their ``labels`` by split, its ``position``, and whether it is ``new`` or
      ``malicious``; ``axes``, what a position consists of; and ``relations``, for each the
      numbers of the sender and of the receiver among the clients, and its weight. Positions,
      axes and labels are None where there are none.

      Of more than `DESCRIBED` clients, ``clients`` are those that are scored and the new ones,
      relations is empty, and ``listed`` has ``of``, the number of all; ``ids``, the numbers of
      those in the list; and ``sha256`` of the `digest_of_names` of those that train. It is None
      where all are in the list.
    """
    federation, axes = experiment.federation, experiment.federation.positions
    whole = federation.everyone or federation.data
    splits = {"train": whole.train, **whole.evals}
    total = len(federation.clients)
    training, ids, edges, listed = federation.training_clients, range(total), (), None
    if total > DESCRIBED:
        ids = [*ids_scored(experiment).tolist(), *range(training, total)]
        digest = digest_of_names(federation.clients[:training])
        listed = {"of": total, "ids": ids, "sha256": digest}
    else:
        parts = (whole.graph.senders, whole.graph.receivers, whole.graph.edges)
        edges = zip(*(np.asarray(part).tolist() for part in parts), strict=True)
    malicious, places = set(np.flatnonzero(malicious_clients(experiment)).tolist()), list(ids)
    counts, labels = {s: np.asarray(p.count)[places].tolist() for s, p in splits.items()}, None
    if federation.task != "regression":
        labels = {
            split: label_counts(federation, part, places).tolist()
            for split, part in splits.items()
        }
    positions = axes and axes.values[places].tolist()
    return {
        **_facts_of(federation),
        "task": federation.task,
        "outputs": federation.outputs,
        "labels": list(federation.labels),
        "axes": axes and list(axes.axes),
        "clients": [
            {
                "name": federation.clients[i],
                "examples": {split: of_split[row] for split, of_split in counts.items()},
                "labels": labels and {split: rows[row] for split, rows in labels.items()},
                "position": positions and positions[row],
                "new": i >= training,
                "malicious": i in malicious,
            }
            for row, i in enumerate(ids)
        ],
        "relations": [list(edge) for edge in edges],
        "listed": listed,
    }


def digest_of_names(clients: Sequence[str]) -> str:
    """SHA-256 of the names of clients in their order."""
    digest = hashlib.sha256()
    for begin in range(0, len(clients), DESCRIBED):  # names may be made when they are read
        digest.update(json.dumps(list(clients[begin : begin + DESCRIBED])).encode())
    return digest.hexdigest()


def _facts_of(federation):
    """Which data set this is."""
    return {
        "name": federation.name,
        "source": federation.source,
        "extent": federation.extent,
        "sha256": federation.sha256,
    }


def _mean(scores: np.ndarray) -> float:
    return float(np.mean(scores, dtype=np.float64))
