"""Checks of what a method is combined with: checkpoints, new clients, attacks, defences."""

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.core import Cohort
from graphfl_jax.declarations import parameters
from graphfl_jax.runs import checkpoint, fleet, models, single
from graphfl_jax.testing.subject import (
    STEPS,
    LeftOut,
    Subject,
    assert_equal,
    federation,
    fixed_key,
    floats,
)

COUNTING = ("trimmed_mean", "krum", "multi_krum")  # defences that need a number of attackers


def a_checkpoint_restores_the_state(subject: Subject, folder: Path) -> None:
    state, _, _ = subject.play(1)
    checkpoint.save(folder, checkpoint.Checkpoint(state, {"round": np.array([1])}, {}))
    assert_equal(checkpoint.latest(folder, state).state, jax.device_get(state))


def scores_of_models(folder: Path) -> dict[str, list[float]]:
    """Accuracies by point and client of saved models on saved test examples, without a run."""
    loaded, test = fleet.load(folder / models.FILE), np.load(folder / "test.npz")
    by_point = {"G": [], "P": []}
    for at, scores in by_point.items():
        for i, client in enumerate(loaded.clients):
            count = test["count"][i]
            label = loaded.predict(client, test["x"][i, :count], at=at)["label"]
            hits = np.float32(np.sum(label == test["y"][i, :count]))
            scores.append(float(hits / np.float32(count)))
    return by_point


def saved_models_have_the_scores_of_the_run(
    subject: Subject,
    folder: Path,
    read: Callable[[Path], dict[str, list[float]]] = scores_of_models,
) -> float:
    """After two rounds, at G and P. Returns the mean score at P.

    Args:
      subject: the method.
      folder: an empty one.
      read: `scores_of_models`, perhaps in another process.
    """
    state, _, scores = subject.play(2)
    predictors = subject.program.predictors(state, fixed_key(), subject.hparams, subject.data)
    facts = models.facts_of(
        subject.experiment, subject.config(local_steps=STEPS), int(state.round)
    )
    models.write(folder / models.FILE, models.groups_of(subject.experiment, predictors), facts)
    np.savez(folder / "test.npz", **subject.data.evals["test"]._asdict())
    expected = {at: np.asarray(scores["test"][at]).tolist() for at in ("G", "P")}
    assert read(folder) == expected
    return float(np.mean(expected["P"]))


def a_resumed_run_ends_like_an_uncut_one(subject: Subject, folder: Path) -> None:
    """Two rounds in one run, and a round in each of two, leave the same bits."""

    def run(rounds, **options):
        every = {"eval_every": 1, "checkpoint_every": 1}
        config = subject.config(rounds=rounds, local_steps=STEPS, **every)
        return single.run(config, federation(), **options)

    whole = run(2)
    assert int(run(1, out=folder).state.round) == 1
    resumed = run(2, out=folder, resume=True)
    assert_equal(jax.device_get(resumed.state), jax.device_get(whole.state))
    assert_equal(resumed.rows, whole.rows)
    assert resumed.results["scores"] == whole.results["scores"]


def new_clients_join_and_train(
    subject: Subject, graph: str = "inductive", rounds: int = 1
) -> None:
    """Two of seven: the others' memories stay, and a round of local training suffices.

    Args:
      subject: the method.
      graph: of `data.new_clients.hold_out`.
      rounds: that are played before they join.
    """
    experiment, program = subject.joining(graph)
    held_out = experiment.federation
    taken = parameters(ALGORITHMS[subject.config().algorithm.name].factory)
    of_new = (part.declaration.rate for part in taken if part.name == "new_client_optimizer")
    rates = {name: subject.fast for name in ("client_lr", *of_new)}
    inputs = (fixed_key(), floats(experiment.hparams, **rates))
    state = program.start(*inputs, held_out.data)
    if rounds:
        state, _ = program.advance(state, *inputs, held_out.data, np.int32(rounds))
    known = jax.device_get(state.clients)
    joined = program.admit(state, *inputs, held_out.everyone)
    after = program.adapt(joined, *inputs, held_out.everyone)
    assert jax.eval_shape(lambda: after) == jax.eval_shape(lambda: joined)
    for now in map(jax.device_get, (joined, after)):
        assert_equal(jax.tree.map(lambda leaf: leaf[:5], now.clients), known)
        assert all(len(leaf) == 7 for leaf in jax.tree.leaves(now.clients))
    scores = subject.program.evaluate(after, *inputs, held_out.everyone)[0]["test"]
    trained, new = np.asarray(scores["L"][:5]), np.asarray(scores["L"][5:])
    # Some small networks cannot fit all clients, whatever the method is: half of the units of a
    # frozen layer may be of no use. So the bound is what the same network learns elsewhere.
    assert new.mean() >= trained.min() - 0.1, (
        f"the new clients' L is {new.tolist()}, and that of clients that trained "
        f"{trained.tolist()}"
    )
    assert all(np.isfinite(points).all() for points in scores.values())


def after_a_round(subject: Subject, mesh=None, *, ratio: float = 0.0, **fields):
    """The state after the first round of a method with an attack."""
    experiment, program = subject.with_attackers(mesh=mesh, **fields)
    inputs = (fixed_key(), floats(experiment.hparams, attack_ratio=ratio))
    data = experiment.federation.data
    start = subject.program.start(fixed_key(), subject.hparams, subject.data)
    return program.advance(jax.device_get(start), *inputs, data, np.int32(1))[0]


def a_round_without_attackers_is_an_honest_one_bit_for_bit(
    subject: Subject, attack: str = "poisoning"
) -> None:
    honest = after_a_round(subject, attack__name=attack)
    assert_equal(honest, after_a_round(subject))


def poison_of_lambda_minus_one_is_honest_bit_for_bit(subject: Subject) -> None:
    """With another lambda it is not, unless nothing is sent."""
    experiment, _ = subject.with_attackers(attack__name="poisoning")
    data = experiment.federation.data
    cohort, rank = Cohort(jnp.arange(7), jnp.ones(7)), jnp.asarray(data.attack_rank)
    algorithm = experiment.build(experiment.hparams, 0)

    @jax.jit
    def untrained():
        server = algorithm.server.init(fixed_key(), data.graph)
        upload = functools.partial(_untrained_upload, algorithm, server)
        return jax.vmap(upload)(cohort.ids, algorithm.client_data(data))

    before, rng = untrained(), np.random.default_rng(0)
    uploads = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(x.dtype), before)

    @jax.jit
    def poison(hparams, before, uploads):
        change = experiment.poison(hparams).uploads
        return change((cohort,), (before,), (uploads,), rank, 0, fixed_key())[0]

    honest, recovered, poisoned = (
        poison(floats(experiment.hparams, **changes), before, uploads)
        for changes in ({}, {"attack_ratio": 0.5, "attack_lambda": -1.0}, {"attack_ratio": 0.5})
    )
    assert_equal(honest, uploads)
    assert_equal(recovered, uploads)
    leaves = zip(*map(jax.tree.leaves, (poisoned, uploads)), strict=True)
    assert all(np.array_equal(a, b) for a, b in leaves) == (not jax.tree.leaves(uploads))


def _untrained_upload(method, server, i, data):
    """The upload of a client that has just joined."""
    message = method.server.download(server, 0, i)
    memory = method.client.enroll(message, fixed_key())
    return method.client.untrained(message, memory, data)


def a_defence_keeps_the_shape_of_the_state(subject: Subject, defence: str = "clip") -> None:
    """Raises `LeftOut` if the method refuses the defence."""
    fields = {"defence__name": defence, "attack__name": "sign_flip"}
    if defence in COUNTING:
        fields["defence__attackers"] = 0
    try:
        experiment, program = subject.with_attackers(**fields)
    except ValueError as error:
        if not str(error).startswith(f"defence.name={defence!r} "):
            raise
        raise LeftOut(str(error)) from error
    inputs = (fixed_key(), floats(experiment.hparams), experiment.federation.data)
    before = jax.eval_shape(program.start, *inputs)
    after, _ = jax.eval_shape(program.advance, before, *inputs, jnp.int32(1))
    assert before == after
