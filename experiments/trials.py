"""Many runs of one configuration as one program: seeds and float hyperparameters, vmapped."""

import copy
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.core import Task
from graphfl_jax.program import make_program


class Trial(NamedTuple):
    """One run, after its last round."""

    hparams: dict[str, float]  # all that the algorithm reads
    seed: int
    diverged: bool
    scores: dict  # {split: {"G" | "L" | "P": [N]}}; meaningless where diverged


def run_trials(
    config: ConfigDict, points: list[dict[str, float]], seeds: list[int], *, at_once: int = 32
) -> tuple[list[Trial], Task]:
    """Runs every point of a grid with every seed, and scores the final round.

    A seed is of the split, the initial weights and all draws, as in a single run.

    Args:
      config: the run that the trials vary.
      points: values for fields of ``hparams``; what a point leaves out stays as in `config`.
      seeds: one run of every point each.
      at_once: runs that share the device's memory.

    Returns:
      The trials, in the order of points, then seeds, and what their scores measure.
    """
    federations = [load_federation(_with_seed(config, seed)) for seed in seeds]
    if len({str(jax.tree.map(np.shape, f.data)) for f in federations}) > 1:
        # A graph of nearest neighbours has more or fewer edges by the seed's split.
        alone = [run_trials(config, points, [seed], at_once=at_once) for seed in seeds]
        by_point = zip(*(trials for trials, _ in alone), strict=True)
        return [trial for trials in by_point for trial in trials], alone[0][1]
    experiment = build_experiment(config, federations[0])
    unread = sorted({name for point in points for name in point} - experiment.hparams.keys())
    if unread:
        raise ValueError(
            f"hparams.{unread[0]} is not read by {config.algorithm.name}; "
            f"its floats are {', '.join(experiment.hparams)}"
        )
    program = make_program(
        experiment.build,
        experiment.model,
        cohort_size=config.cohort_size,
        block=config.eval_block,
    )
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    data = jax.tree.map(lambda *leaves: np.stack(leaves), *(f.data for f in federations))

    def trial(key, hparams, data):
        state = program.start(key, hparams, data)
        state, log = program.advance(state, key, hparams, data, jnp.int32(config.rounds))
        return log.diverged_at, program.evaluate(state, key, hparams, data)

    over_points = jax.vmap(trial, (None, 0, None))
    everything = jax.jit(jax.vmap(over_points, (0, None, 0)))  # [seeds, points, ...]

    full = [{**experiment.hparams, **point} for point in points]
    size = max(1, at_once // len(seeds))
    trials = []
    for begin in range(0, len(full), size):
        part = full[begin : begin + size]
        # The last batch is filled up with its last point, so that one program serves all.
        filled = part + part[-1:] * (min(size, len(full)) - len(part))
        hparams = {
            k: jnp.array([p[k] for p in filled], jnp.float32) for k in experiment.hparams
        }
        diverged_at, scores = jax.device_get(everything(keys, hparams, data))
        for p, point in enumerate(part):
            for s, seed in enumerate(seeds):
                own = jax.tree.map(lambda leaf: leaf[s, p], scores)  # noqa: B023
                finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(own))
                diverged = bool(diverged_at[s, p] >= 0) or not finite
                trials.append(Trial(point, seed, diverged, own))
    return trials, experiment.model.task


def _with_seed(config, seed):
    config = copy.deepcopy(config)
    config.seed = seed
    return config
