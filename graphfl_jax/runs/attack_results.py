"""What the results of a run state of its attackers, and of a defence that rejects uploads."""

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment
from graphfl_jax.core import Task
from graphfl_jax.data import relations
from graphfl_jax.evaluation import POINTS
from graphfl_jax.robustness.attacks import Attackers
from graphfl_jax.runs.rows import mean_scores, summaries

# Names of shares of malicious clients among a client's neighbours, and the largest such share.
NEIGHBOURS = {"none": 0.0, "up to half": 0.5, "more than half": 1.0}


def malicious_clients(experiment: Experiment) -> np.ndarray:
    """Whether each of the N clients attacks."""
    federation = experiment.federation
    rank = federation.data.attack_rank
    if rank is None or "attack_ratio" not in experiment.hparams:
        return np.zeros(len(federation.data.train.count), bool)
    training = len(federation.clients) - federation.new_clients
    attackers = Attackers(jnp.float32(experiment.hparams["attack_ratio"]), training)
    return np.asarray(attackers.among(np.asarray(rank)))


def rejections(experiment: Experiment, rejected: np.ndarray) -> dict:
    """The share of a client's uploads that were rejected, of honest and malicious clients.

    Args:
      experiment: of the run.
      rejected: [N], from `Evaluated`, -1 for clients that have been in no cohort; with a
        transductive graph, new clients follow.

    Returns:
      ``honest`` and ``malicious``, means over those of these clients that have been in a
      cohort, None without any, and ``per_client``, None for all others.
    """
    malicious = malicious_clients(experiment)
    rejected = rejected[: len(malicious)]
    shares = {"honest": rejected[~malicious], "malicious": rejected[malicious]}
    uploaded = {name: values[values >= 0] for name, values in shares.items()}
    means = {
        name: float(np.mean(values)) if len(values) else None
        for name, values in uploaded.items()
    }
    per_client = np.asarray(rejected, np.float64).round(6).tolist()
    return means | {"per_client": [None if share < 0 else share for share in per_client]}


def attack_summary(config: ConfigDict, experiment: Experiment, final: dict | None) -> dict:
    """Which clients attacked a run, and the effect after the last round.

    Args:
      config: of the run.
      experiment: of the run.
      final: as for `final_scores`; None for a run that diverged.

    Returns:
      ``name``; ``malicious``, the names of the attackers, ``ids``, their numbers, and
      ``ratio``, their share; ``benign``, the test scores of all others at G, L and P;
      ``benign_by_malicious_neighbours``, see `by_malicious_neighbours`, None without relations;
      and ``success``, the share of triggered images that these classify as the target, as
      means over clients at G, L and P, None without triggers.
    """
    federation = experiment.federation
    training = len(federation.clients) - federation.new_clients
    malicious = malicious_clients(experiment)
    benign = ~malicious
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
            federation.data.graph, malicious, final["test"], experiment.model.task
        )
    if "triggered" in final:
        test = federation.data.evals["test"]
        real = np.arange(test.y.shape[1]) < test.count[:, None]
        # Clients whose images all have the target label anyway do not count.
        counted = benign & (real & (test.y != config.attack.target)).any(axis=1)
        if counted.any():
            result["success"] = {
                point: float(np.mean(np.asarray(final["triggered"][point])[counted]))
                for point in POINTS
            }
    return result


def by_malicious_neighbours(graph, malicious: np.ndarray, scores: dict, task: Task) -> list:
    """Mean scores of benign clients by the share of malicious ones among their neighbours.

    Args:
      graph: relations between the N clients; with a transductive graph, new clients follow.
      malicious: [N] bool.
      scores: {point: [N]}.
      task: of the scores.

    Returns:
      For each of `NEIGHBOURS` that has clients, its name as ``share``; their numbers ``ids``;
      and ``scores``, means over them at each point.
    """
    shares = relations.shares_among_neighbours(graph, np.flatnonzero(malicious))
    places = np.searchsorted(list(NEIGHBOURS.values()), shares[: len(malicious)])
    rows = []
    for place, name in enumerate(NEIGHBOURS):
        ids = np.flatnonzero(~malicious & (places == place))
        if len(ids):
            means = mean_scores(scores, ids, task)
            rows.append({"share": name, "ids": ids.tolist(), "scores": means})
    return rows


def check_attacked(*runs: tuple[ConfigDict, Experiment]) -> None:
    """Refuses runs with an attack and without attackers.

    Beside runs with attackers, some may have the share 0, to compare with.

    Args:
      runs: configurations, and what was built of them.

    Raises:
      ValueError: nobody attacks in any run, or in one with a larger share; one line.
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
