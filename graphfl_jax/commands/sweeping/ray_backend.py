"""Runs of a sweep on a Ray cluster. A task is a batch of runs that one program plays."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from graphfl_jax.build import load_federation
from graphfl_jax.commands.common.configuration import contents_of
from graphfl_jax.commands.common.interrupts import watch_again
from graphfl_jax.configs.values import change
from graphfl_jax.data.files import default_root
from graphfl_jax.runs.batch import Outcome, Trial, run_trials, with_seed
from graphfl_jax.runs.sweep import TrialGroup

TASK_RUNS = 32  # runs of a task, unless --at_once is set
RETRIES = 5  # of a task whose node was lost


def connect(address: str) -> None:
    """Joins a running Ray cluster.

    Raises:
      ValueError: Ray is not installed, or no cluster answers at the address.
    """
    try:
        import ray
    except ImportError:
        raise ValueError(
            "launcher=ray needs Ray, which is not installed; run pip install ray"
        ) from None
    # For nodes that share the files of this host, with this package first.
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        if address != "auto":  # Ray itself would wait for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="error",
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
        watch_again()  # Ray prints a stack at SIGTERM
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(
            f"ray_address={address} does not answer ({why}); start a cluster with ray start "
            f"--head"
        ) from None


def run_groups(
    groups: list[TrialGroup], *, at_once: int, file: Path | None = None
) -> Iterator[tuple[TrialGroup, int, Outcome]]:
    """Runs groups of trials as tasks on the cluster, each on one accelerator or one CPU core.

    A task whose node is lost is sent to another node.

    Args:
      groups: of the sweep.
      at_once: runs of a task, all in one program. With 0 a task has at most `TASK_RUNS` runs,
        and the node chooses how many of them are in one program.
      file: the configuration file, which the nodes execute too, since it may register parts.

    Yields:
      The group, the index in its ``planned``, and the outcome of a run, as tasks end.
    """
    import ray

    accelerators = ray.cluster_resources().get("GPU", 0)
    needs = {"num_gpus": 1} if accelerators else {"num_cpus": 1}
    task = ray.remote(max_retries=RETRIES, **needs)(_run_part)
    size = at_once or TASK_RUNS
    path = None if file is None else str(file.resolve())
    pending = {}
    for group in groups:
        root = group.config.data.root or str(default_root())
        config = change(group.config, {"data.root": root})
        for begin in range(0, len(group.planned), size):
            trials = [planned.trial for planned in group.planned[begin : begin + size]]
            pending[task.remote(config, trials, at_once, path)] = (group, begin)
    while pending:
        (ended,), _ = ray.wait(list(pending), num_returns=1)
        group, begin = pending.pop(ended)
        for i, outcome in ray.get(ended):
            yield group, begin + i, outcome


def _run_part(config: ConfigDict, trials: list[Trial], at_once: int, file: str | None):
    if file is not None:
        contents_of("config", file)
    seeds = {trial.seed for trial in trials}
    federations = {seed: load_federation(with_seed(config, seed)) for seed in seeds}
    return list(run_trials(config, federations, trials, at_once=at_once))
