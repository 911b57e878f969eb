"""One run from configuration to results, in memory or in a folder."""

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from graphfl_jax.build import (
    Experiment,
    arrange,
    build_experiment,
    load_federation,
    variant_of,
)
from graphfl_jax.core import State
from graphfl_jax.data.federation import Federation
from graphfl_jax.program import (
    Log,
    Program,
    client_mesh,
    make_program,
    message_bytes,
    play_rounds,
)
from graphfl_jax.runs.folder import PATHS, RunFolder, as_text, checkpoint
from graphfl_jax.runs.multihost import assert_same_on_all, is_first, run_synchronized, barrier
from graphfl_jax.runs.results import (
    attack_summary,
    environment,
    errors_in_units,
    final_scores,
    new_client_scores,
)


class Result(NamedTuple):
    """A finished run."""

    results: dict  # what results.json holds
    rows: list[dict]  # per evaluation: round, train {name: []}, scores {split: {point: [N]}}
    state: State  # after the last round
    diverged_at: int  # the round that left a non-finite number, or -1


class Compiled(NamedTuple):
    """A program compiled ahead, with its inputs bound and its first state."""

    state: State
    advance: Callable  # (state, rounds) -> (state, log); takes the state's buffers
    evaluate: Callable  # (state) -> scores and tallies
    join: Callable  # (state) -> new clients' scores after 0, 1, ... rounds at home, a generator
    down_bytes: int  # one client's message in a round
    up_bytes: int  # one client's upload in a round
    seconds: float  # spent compiling


def run(
    config: ConfigDict,
    federation: Federation | None = None,
    *,
    out: str | os.PathLike | None = None,
    resume: bool = False,
    report: Callable[[int], None] = lambda played: None,
) -> Result:
    """Runs the federation that a configuration describes.

    Where `jax.distributed` has joined several processes, all must call this alike. A cohort is
    split over the devices of all, and the first process alone reads and writes `out`.

    Args:
      config: as `configs.base` describes it.
      federation: from `data.from_arrays`, in place of the one that `config.data` names.
      out: folder for config.json, metrics.jsonl, checkpoints and results.json; None writes
        nothing.
      resume: goes on from the newest whole checkpoint in `out`, bit for bit on the same device
        type and versions; starts at round 0 where there is none.
      report: called after every evaluation with the number of rounds played.

    Raises:
      ValueError: a field, the data or the folder does not fit. One line; nothing is written.
      OSError: a file is missing, or cannot be written.
    """
    if resume and out is None:
        raise ValueError("resume=True needs the folder of the run; set --out")

    def prepare():
        kept = out is not None and is_first()
        folder = RunFolder(out, config, resume=resume) if kept else None
        found = load_federation(config) if federation is None else arrange(config, federation)
        return folder, build_experiment(config, found)

    folder, experiment = run_synchronized(prepare)
    task = experiment.model.task
    where = environment()
    assert_same_on_all(
        {
            "configuration": as_text(config, without=PATHS),
            "data": experiment.federation.sha256,
            "versions": json.dumps(where["versions"]),
        }
    )
    compiled = compile_experiment(experiment, config)

    state, rows = compiled.state, []
    seconds = {"compile": 0.0, "train": 0.0, "evaluate": 0.0, "new_clients": 0.0}
    identity = {"data": experiment.federation.sha256, **where}
    found = run_synchronized(lambda: folder and folder.begin(state, task, identity))
    if resume:
        found = checkpoint.from_first(found, state)
    if found is not None:
        rows, seconds = RunFolder.rows(found), found.notes["seconds"]
        state = jax.tree.map(lambda leaf, like: _on(like.sharding, leaf), found.state, state)
    seconds["compile"] += compiled.seconds
    state, extras, broken = _play(compiled, config, state, rows, seconds, folder, report)

    new_clients = None
    if broken < 0:
        if extras is None:  # nothing was left to play
            _, extras = jax.device_get(compiled.evaluate(state))
        if experiment.federation.new_clients:
            with clock(seconds, "new_clients"):
                new_clients = new_client_scores(
                    experiment.federation, compiled.join(state), task
                )
    results = results_of(
        config,
        experiment,
        rows,
        extras,
        new_clients,
        diverged=broken >= 0,
        seconds=seconds,
        played=int(state.round),
        traffic=(compiled.down_bytes, compiled.up_bytes),
        where=where,
    )
    run_synchronized(lambda: folder and folder.finish(results))
    return Result(results, rows, state, broken)


def _play(compiled, config, state, rows, seconds, folder, report):
    """Plays and evaluates to the last round or to divergence; adds to `rows` and `seconds`.

    Returns:
      The state, the tallies of the last evaluation (None without any), and `diverged_at`.
    """
    played = saved = int(state.round)
    extras = None
    while played < config.rounds:
        step = min(config.eval_every - played % config.eval_every, config.rounds - played)
        with clock(seconds, "train"):
            state, log = jax.block_until_ready(play_rounds(compiled.advance, state, step))
        with clock(seconds, "evaluate"):
            scores, extras = jax.device_get(compiled.evaluate(state))
        played += step
        broken = diverged_at(log, scores, played)
        if broken >= 0:
            return state, extras, broken
        row = {"round": np.int32(played), "train": log.metrics, "scores": scores}
        rows.append(jax.tree.map(np.asarray, row))
        due = played == config.rounds or played - saved >= config.checkpoint_every
        run_synchronized(_write, folder, state, rows, seconds, due)
        saved = played if due else saved
        report(played)
    return state, extras, -1


def _write(folder, state, rows, seconds, due):
    """Writes the last of `rows`, and a checkpoint where one is due."""
    if folder is not None:
        folder.append(rows[-1])
        if due:
            folder.save(state, rows, seconds)


def results_of(
    config: ConfigDict,
    experiment: Experiment,
    rows: list[dict],
    extras: dict,
    new_clients: dict | None,
    *,
    diverged: bool,
    seconds: dict[str, float],
    played: int,
    traffic: tuple[int, int],
    where: dict,
) -> dict:
    """What results.json holds of a run; a run that diverged has no score.

    Args:
      config: of the run.
      experiment: of the run.
      rows: its evaluations, as `Result` has them.
      tallies: of the last of them.
      novel: as `results.novel_scores` tells it, if there are new clients.
      diverged: whether it did.
      seconds: spent on ``compile``, ``train``, ``evaluate`` and ``novel``.
      played: rounds.
      traffic: bytes of one client's message and of its upload in a round.
      where: it was made, as `results.environment` tells it.
    """
    federation, task = experiment.federation, experiment.model.task
    scores = errors = attack = None
    if config.attack.name:
        attack = attack_summary(
            *(config.attack.name, config.attack.target, federation),
            *(experiment.hparams["attack_ratio"], [] if diverged else rows, task),
        )
    if not diverged:
        scores = final_scores(rows, task)
        if task.summarize:
            errors = errors_in_units(federation, extras, task)
    down, up = traffic
    steps = played * config.cohort_size * config.local_steps
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
        "errors": errors,
        "new_clients": None if diverged else new_clients,
        "attack": attack,
        "defence": config.defence.name or None,
        "timing": {
            **{f"{what}_s": spent for what, spent in seconds.items()},
            "client_steps_per_s": steps / seconds["train"],
        },
        "communication": {"up_bytes": up, "down_bytes": down},
        **where,
    }


def program_of(experiment: Experiment, config: ConfigDict, mesh: Mesh | None = None) -> Program:
    """The program of an experiment at a configuration's sizes."""
    return make_program(
        experiment.build,
        experiment.model,
        cohort_size=config.cohort_size,
        block=config.eval_batch_size,
        group=config.clients_per_eval,
        mesh=mesh,
        new_clients=experiment.federation.new_clients,
    )


def compile_experiment(experiment: Experiment, config: ConfigDict) -> Compiled:
    """Compiles an experiment for the devices of all processes, and makes its first state."""
    began = time.perf_counter()
    mesh = run_synchronized(client_mesh, config.cohort_size)
    program = program_of(experiment, config, mesh)
    hparams = {name: jnp.float32(value) for name, value in experiment.hparams.items()}
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    key = jax.jit(jax.random.key, static_argnums=0, out_shardings=everywhere)(config.seed)
    settings = (key, _on(everywhere, hparams))
    inputs = (*settings, _on(everywhere, experiment.federation.data))
    state = jax.block_until_ready(program.start(*inputs))
    advance = program.advance.lower(state, *inputs, jnp.int32(1)).compile()
    evaluate = program.evaluate.lower(state, *inputs).compile()

    def join(state):
        everyone = (*settings, _on(everywhere, experiment.federation.everyone))
        state = program.admit(state, *everyone)
        for played in range(config.new_clients.rounds + 1):
            if played:
                state = program.adapt(state, *everyone)
            scores, _ = jax.device_get(program.evaluate(state, *everyone))
            new_clients = experiment.federation.new_clients
            yield jax.tree.map(lambda leaf: leaf[-new_clients:], scores)  # noqa: B023

    down, up = message_bytes(experiment.build(hparams, 0), state, experiment.federation.data)
    barrier()  # compiling takes some longer than the 30 s in which a mesh must meet
    return Compiled(
        state,
        lambda state, rounds: advance(state, *inputs, rounds),
        lambda state: evaluate(state, *inputs),
        join,
        down,
        up,
        time.perf_counter() - began,
    )


@contextlib.contextmanager
def clock(seconds: dict[str, float], what: str):
    """Adds the time of a block to ``seconds[what]``."""
    began = time.perf_counter()
    yield
    seconds[what] += time.perf_counter() - began


def _on(sharding, values):
    """Values that all processes have, on the devices of a sharding that splits none of them."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(values, sharding)

    def place(leaf):
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf)

    return jax.tree.map(place, values)


def diverged_at(log: Log, scores: dict, played: int) -> int:
    """The first round that left something not finite, by training or by a score, or -1."""
    if int(log.diverged_at) >= 0:
        return int(log.diverged_at)
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(scores))
    return -1 if finite else played
