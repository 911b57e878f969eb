"""What a run leaves behind: rows of metrics, scores, provenance."""

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import graphfl_jax
from graphfl_jax.core import Task
from graphfl_jax.data.federation import Federation
from graphfl_jax.metrics import summary
from graphfl_jax.robustness.attacks import malicious

POINTS = ("G", "L", "P")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "jraph", "orbax-checkpoint", "numpy")


def row_line(row: dict, task: Task) -> str:
    """One evaluation as a line of JSON.

    Args:
      row: ``{"round", "train": {name: []}, "scores": {split: {point: [N]}}}``.
    """
    line = {
        "round": int(row["round"]),
        "train": {name: float(value) for name, value in row["train"].items()},
        **{split: summaries(scores, task) for split, scores in row["scores"].items()},
    }
    return json.dumps(line, allow_nan=False) + "\n"


def final_scores(rows: list[dict], task: Task) -> dict:
    """Test scores of the last round, and of the round that validation likes best.

    Validation compares the mean over clients at P, the predictor that a client would use; the
    earliest of equals wins. Without a validation split ``best_val`` is None.
    """
    best = None
    if "val" in rows[0]["scores"]:
        means = np.array([row["scores"]["val"]["P"].mean(dtype=np.float64) for row in rows])
        chosen = rows[int(means.argmax() if task.higher_is_better else means.argmin())]
        best = {
            "round": int(chosen["round"]),
            **summaries(chosen["scores"]["test"], task),
        }
    return {"final": summaries(rows[-1]["scores"]["test"], task), "best_val": best}


def new_client_scores(federation: Federation, scores: Iterable[dict], task: Task) -> dict:
    """Test scores of clients that joined after training, as they adapt.

    Args:
      federation: whose last clients are the new clients.
      scores: ``{split: {point: [new clients]}}`` after 0, 1, ... rounds at home.

    Returns:
      ``clients``, their names; ``curve``, for every number of rounds the summaries at G, L and
      P, of which the first, before any round, is zero-shot at G; and ``diverged_at``, the
      number of rounds after which a score was not finite, where the curve ends, or -1.
    """
    told = {
        "clients": list(federation.clients[-federation.new_clients :]),
        "curve": [],
        "diverged_at": -1,
    }
    for played, after in enumerate(scores):
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after)):
            told["diverged_at"] = played
            break
        told["curve"].append({"rounds": played, **summaries(after["test"], task)})
    return told


def attack_summary(
    name: str, target: int, federation: Federation, ratio: float, rows: list[dict], task: Task
) -> dict:
    """Who attacked a run, and what that came to after the last round.

    Args:
      name: of the attack.
      target: the label that a trigger is to mean, if there are triggers.
      federation: of the run.
      ratio: of malicious clients, as the run was given it.
      rows: as for `final_scores`; none of a run that diverged.

    Returns:
      ``name``; ``malicious``, the names of those who are, ``ids``, their numbers, and
      ``ratio``, their share; ``benign``, the test scores of all others at G, L and P; and
      ``success``, the share of triggered images that these take for the target, as means over
      clients at G, L and P, None without triggers.
    """
    training = len(federation.clients) - federation.new_clients
    rank = np.asarray(federation.data.rank)
    others = ~np.asarray(malicious(rank, jnp.float32(ratio), training))
    ids = np.flatnonzero(~others).tolist()
    told = {
        "name": name,
        "ratio": len(ids) / training,
        "malicious": [federation.clients[i] for i in ids],
        "ids": ids,
        "benign": None,
        "success": None,
    }
    if not (rows and others.any()):
        return told
    final = rows[-1]["scores"]
    own = {point: np.asarray(final["test"][point])[others] for point in POINTS}
    told["benign"] = summaries(own, task)
    if "triggered" in final:
        test = federation.data.evals["test"]
        fooled = (np.arange(test.y.shape[1]) < test.count[:, None]) & (test.y != target)
        others &= fooled.any(axis=1)  # whose images are not all of the target anyway
        told["success"] = {
            point: float(np.mean(np.asarray(final["triggered"][point])[others]))
            for point in POINTS
        }
    return told


def errors_in_units(federation: Federation, extras: dict, task: Task) -> dict:
    """What a task's tallies come to at G, L and P, and the units that they are in.

    Args:
      tallies: ``{point: {name: [N, ...]}}``.
    """
    return {
        "units": federation.units.name,
        **{point: task.summarize(extras[point]) for point in POINTS},
    }


def summaries(scores: dict, task: Task) -> dict:
    """`metrics.summary` of the clients' scores at G, L and P."""
    return {
        point: summary(scores[point], higher_is_better=task.higher_is_better)
        for point in POINTS
    }


def environment() -> dict:
    """Where a run was made: device, versions, and the commit of this checkout if it is one."""
    versions = {"graphfl_jax": graphfl_jax.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        versions[package] = importlib.metadata.version(package)
    devices, processes = jax.devices(), jax.process_count()
    where = f" of {processes} processes" if processes > 1 else ""
    return {
        "device": f"{len(devices)} x {devices[0].platform}: {devices[0].device_kind}{where}",
        "versions": versions,
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """The checked-out commit, with "+changes" where tracked files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*words):
        command = ["git", "-C", str(here), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if not git("ls-files", "results.py"):
            return None  # installed inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("+changes" if git("diff", "HEAD", "--stat") else "")
    except (OSError, subprocess.CalledProcessError):
        return None  # no git here, or no checkout
