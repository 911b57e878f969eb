"""The checks: of rounds, runs and evaluations, and of what a method is combined with.

Each takes a `Subject`, and fails by an assertion.
"""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax import tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.core import ClientData, Cohort
from graphfl_jax.data import relations
from graphfl_jax.data.new_clients import select_clients
from graphfl_jax.data.sparse import SparseMatrix, sparse_matrix
from graphfl_jax.declarations import parameters
from graphfl_jax.examples import Examples
from graphfl_jax.memory import bytes_of
from graphfl_jax.program import key_of_round
from graphfl_jax.rounds import (
    Drawn,
    Poison,
    keys_of_round,
    message_bytes,
    messages_per_client,
    play_round,
    present_first,
    sample_cohorts,
    untrained_uploads,
)
from graphfl_jax.runs import checkpoint, fleet, models, single
from graphfl_jax.runs.session import Inputs, place, program_at_sizes, program_of
from graphfl_jax.runs.streamed import StreamedSession, without_examples
from graphfl_jax.testing.subject import (
    RATES,
    STEPS,
    LeftOut,
    Subject,
    assert_equal,
    federation,
    fixed_key,
    floats,
    stack,
)

# Defences that need a number of attackers
COUNTING = ("trimmed_mean", "krum", "multi_krum", "bulyan", "dnc")


def a_round_keeps_the_shape_of_the_state(subject: Subject) -> None:
    program, inputs = subject.program, (fixed_key(), subject.hparams, subject.data)
    before = jax.eval_shape(program.start, *inputs)
    after, _ = jax.eval_shape(program.advance, before, *inputs, jnp.int32(1))
    assert before == after


def all_floats_are_read(subject: Subject) -> None:
    """Each is an input of a computation of the program, which is traced and not run."""
    ignored = set(subject.hparams) - _read_by(subject.experiment, subject.program)
    if ignored:  # perhaps only new clients need it
        ignored -= _read_by(*subject.joining())
    assert not ignored, f"{', '.join(sorted(ignored))} is not read"


def _read_by(experiment, program):
    """The names of the floats that computations of a program have as inputs."""
    names = {name: name for name in experiment.hparams}
    data, everyone = experiment.federation.data, experiment.federation.everyone
    inputs = (fixed_key(), floats(experiment.hparams))
    state, rounds = jax.eval_shape(program.start, *inputs, data), (np.int32(1),)
    steps = [(program.start, (), data, ()), (program.advance, (state,), data, rounds)]
    steps.append((program.evaluate, (state,), data, ()))
    if everyone:
        joined = jax.eval_shape(program.admit, state, *inputs, everyone)
        steps.append((program.admit, (state,), everyone, ()))
        steps.append((program.adapt, (joined,), everyone, ()))
    read = set()
    for function, first, federation_data, last in steps:
        traced = function.trace(*first, *inputs, federation_data, *last).jaxpr.jaxpr
        used = {id(variable) for line in traced.eqns for variable in line.invars}
        key = inputs[0]
        before, after = jax.tree.map(lambda _: "", ((*first, key), (federation_data, *last)))
        named = zip(jax.tree.leaves((before, names, after)), traced.invars, strict=True)
        read |= {name for name, variable in named if name and id(variable) in used}
    return read


def a_client_computes_the_same_compiled_and_not(subject: Subject) -> None:
    experiment = build_experiment(subject.config(local_steps=2), federation())
    algorithm = experiment.build(floats(experiment.hparams), 0)
    client, data = algorithm.client, experiment.federation.data
    message = algorithm.server.download(algorithm.server.init(fixed_key(), data.graph), 0, 1)
    memory = client.enroll(message, fixed_key())
    train, val = tree.take((data.train, data.evals["val"]), 1)
    rows = jax.tree.map(jnp.asarray, ClientData(train, val))

    def one_client(message, memory):
        memory, upload, metrics = client.local(message, memory, rows, fixed_key())
        if client.personalize is None:
            return memory, upload, metrics
        return memory, upload, metrics, client.personalize(message, memory, rows, fixed_key())

    compiled = jax.jit(one_client)(message, memory)
    with jax.disable_jit():
        assert_equal(one_client(message, memory), compiled, rtol=2e-4, atol=1e-5)


def neither_rounds_nor_floats_recompile(subject: Subject) -> None:
    """The checks of a subject share the program, and so count its compilations together."""
    for scale, rounds in ((1.0, 1), (0.5, 2), (0.25, 3)):
        subject.play(rounds, **{k: v * scale for k, v in subject.hparams.items()})
    assert subject.program.advance._cache_size() == 1


def a_run_in_pieces_is_the_whole_run_bit_for_bit(subject: Subject) -> None:
    program, inputs = subject.program, (fixed_key(), subject.hparams, subject.data)
    whole, _, scores = subject.play(5)
    state = program.start(*inputs)
    for rounds in (2, 1, 2):
        state, _ = program.advance(state, *inputs, np.int32(rounds))
        program.evaluate(state, *inputs)
    assert_equal(state, whole)
    assert_equal(program.evaluate(state, *inputs)[0], scores)


def a_cohort_of_one_client_plays_rounds(subject: Subject) -> None:
    """Raises `LeftOut` if the method needs all clients in every round."""
    if subject.experiment.build(subject.hparams, 0).needs.everyone:
        raise LeftOut("it needs all clients in every round")
    config = subject.config(cohort_size=1, local_steps=2)
    experiment = build_experiment(config, federation())
    program = program_of(experiment, config)
    inputs = (fixed_key(), subject.hparams, subject.data)
    before = program.start(*inputs)
    shapes = jax.eval_shape(lambda: before)
    after, log = program.advance(before, *inputs, np.int32(2))
    assert jax.eval_shape(lambda: after) == shapes
    assert int(log.diverged_at) == -1 and int(after.round) == 2


def a_sharded_round_is_the_unsharded_one(subject: Subject) -> None:
    """With small steps: at larger ones a ReLU that flips turns 1e-7 into 1e-3."""
    inputs = (fixed_key(), floats(subject.hparams, client_lr=0.01), subject.data)
    start = jax.device_get(subject.program.start(*inputs))
    state, log = subject.sharded_program.advance(start, *inputs, np.int32(1))
    for ours, alone in zip((state, log), subject.play(1, client_lr=0.01), strict=False):
        assert_equal(jax.device_get(ours), jax.device_get(alone), rtol=1e-5, atol=1e-6)


def a_sharded_evaluation_is_the_unsharded_one(subject: Subject) -> None:
    """Seven clients, evaluated as many at once as there are devices."""
    rates = floats(subject.hparams, client_lr=0.01)
    state, _, alone = subject.play(1, client_lr=0.01)
    arguments = (jax.device_get(state), fixed_key(), rates, subject.data)
    scores, *_ = subject.sharded_program.evaluate(*arguments)
    assert_equal(jax.device_get(scores), jax.device_get(alone), rtol=1e-5, atol=1e-6)


def clients_on_the_host_change_no_bit(subject: Subject) -> None:
    """State, memories, log and scores are those of a program that has all clients.

    The rounds are played in two executions. Raises `LeftOut` if the method needs all clients on
    the device.
    """
    storage, counts = {"data__storage": "host"}, (3, 2)
    config = subject.config(local_steps=STEPS, rounds=5, eval_every=3, **storage)
    try:
        experiment = build_experiment(config, federation())
    except ValueError as error:
        raise LeftOut(str(error)) from error
    program, data = program_at_sizes(experiment, config), without_examples(subject.data)
    inputs = place(Inputs(fixed_key(), subject.hparams, data), jnp.zeros(()).sharding)
    session = StreamedSession(program, inputs, experiment, config)
    state = session.state
    expected = subject.program.start(fixed_key(), subject.hparams, subject.data)
    everyone = np.arange(len(subject.data.train.count), dtype=np.int32)
    for count in counts:
        assert_equal(session.recall(everyone), expected.clients[0])
        arguments = (expected, fixed_key(), subject.hparams, subject.data)
        expected, log = subject.program.advance(*arguments, np.int32(count))
        state, streamed = session.advance(state, count)
        assert_equal(state.server, expected.server)
        assert_equal(streamed.metrics, log.metrics)
        trained = np.asarray(log.participation.trained)
        assert_equal(streamed.participation.rounds_trained(everyone), trained)
    assert_equal(session.recall(everyone), expected.clients[0])
    scores = subject.program.evaluate(expected, fixed_key(), subject.hparams, subject.data)[0]
    assert_equal(session.evaluate(state).scores, scores)


def vmapped_runs_are_the_looped_ones(subject: Subject) -> None:
    """A batch of runs has the scores of single runs."""
    program, data = subject.program, subject.data
    rates = [floats(subject.hparams, client_lr=rate) for rate in (0.02, 0.01)]
    keys = jax.random.split(jax.random.key(5), 2)

    def run(key, hparams):
        state = program.start(key, hparams, data)
        state, _ = program.advance(state, key, hparams, data, np.int32(2))
        return program.evaluate(state, key, hparams, data)[0]

    vmapped = jax.device_get(jax.jit(jax.vmap(run))(keys, stack(rates)))
    for i in range(2):
        alone = run(keys[i], rates[i])
        assert_equal(jax.tree.map(lambda leaf: leaf[i], vmapped), alone, atol=1e-5)  # noqa: B023


def values_of_padding_change_nothing(subject: Subject) -> None:
    filled = federation(filler=1e9).data
    both = subject.play(2, data=filled), subject.play(2)
    for with_filler, without in zip(*both, strict=True):
        assert_equal(with_filler, without)


def rows_of_padding_change_nothing(subject: Subject) -> None:
    data = federation(padding=0).data
    for with_rows, without in zip(subject.play(2), subject.play(2, data=data), strict=True):
        assert_equal(with_rows, without)
    subject.program.advance.clear_cache()  # the other shape must not count as a compilation


def renaming_clients_renames_the_results(subject: Subject) -> None:
    """Clients of the cohort change names among themselves, and so do the others.

    All of a client's examples are equal, so that the draw of batches has no effect.
    """
    whole, program = federation(), subject.program
    train = whole.data.train
    equal = [np.repeat(leaf[:, :1], leaf.shape[1], axis=1) for leaf in (train.x, train.y)]
    data = whole.data._replace(train=Examples(*equal, train.count))
    rates = floats(subject.hparams, client_lr=0.02)
    if "embedding_dropout" in rates:  # its draw depends on the number of a client
        rates["embedding_dropout"] = np.float32(0.0)
    start = jax.device_get(program.start(fixed_key(), rates, data))
    cohort = _first_cohort(subject, start, data)
    others = np.setdiff1d(np.arange(7), cohort)
    order = np.arange(7)
    order[cohort], order[others] = np.roll(cohort, 1), np.roll(others, 1)

    def permute(values):
        """Every axis of size seven is an axis of clients, and edges name clients."""

        def permute_leaf(leaf):
            if isinstance(leaf, SparseMatrix):
                return _renamed(leaf, order)
            leaf = np.asarray(leaf)
            for axis, size in enumerate(leaf.shape):
                leaf = np.take(leaf, order, axis) if size == 7 else leaf
            return leaf

        is_matrix = lambda value: isinstance(value, SparseMatrix)  # noqa: E731
        return jax.tree.map(permute_leaf, values, is_leaf=is_matrix)

    other_data = select_clients(data, order)
    state, _ = program.advance(start, fixed_key(), rates, data, np.int32(1))
    other, _ = program.advance(permute(start), fixed_key(), rates, other_data, np.int32(1))
    assert_equal(permute(state), other, rtol=1e-4, atol=1e-5)
    scores, *_ = program.evaluate(state, fixed_key(), rates, data)
    other_scores, *_ = program.evaluate(other, fixed_key(), rates, other_data)
    assert_equal(permute(scores), other_scores, atol=1e-5)


def _renamed(matrix, order):
    """A sparse matrix whose client order[i] becomes client i."""
    places = np.argsort(order).astype(np.int32)
    senders, receivers = places[matrix.senders], places[matrix.receivers]
    edges = np.lexsort((senders, receivers))
    return sparse_matrix(
        senders[edges], receivers[edges], matrix.weights[edges], matrix.diagonal[order]
    )


def _first_cohort(subject, state, data):
    """The ids of the clients that the program draws for the first round."""
    algorithm = subject.experiment.build(subject.hparams, 0)
    key, groups = keys_of_round(key_of_round(fixed_key(), 0)).cohort, subject.experiment.groups
    _, (cohort,) = sample_cohorts(algorithm, state, data.train.count, key, groups)
    return np.asarray(cohort.ids)


def relations_have_an_effect_exactly_where_they_are_needed(subject: Subject) -> None:
    """With other relations, as many of them, the loss is the same bit for bit, or another."""
    pairs = [(i, (i + 1) % 7) for i in range(7)] + [(0, 3), (2, 5)]
    other = subject.data._replace(graph=relations.from_edges(7, pairs))
    _, first, _ = subject.play(2)
    _, second, _ = subject.play(2, data=other)
    changed = float(first.metrics["loss"]) != float(second.metrics["loss"])
    assert changed == subject.experiment.build(subject.hparams, 0).needs.relations


def it_learns_what_only_personal_models_can(subject: Subject) -> None:
    """A shared model is right half of the time; a round of local training must suffice.

    It must be right as often as local training from the first model is, or 19 times of 20.
    """
    _, _, first = subject.play(0, client_lr=subject.fast)
    _, log, last = subject.play(60, client_lr=subject.fast)
    assert int(log.diverged_at) == -1
    before, after = (float(scores["test"]["L"].mean()) for scores in (first, last))
    bound = max(0.75, min(0.95, before - 0.03))
    assert after > bound, f"L is {after:.3f}, before the first round {before:.3f}"


def divergence_is_reported_with_its_round(subject: Subject) -> None:
    """Clients that are not finite count as untrained, so the server stays finite.

    At 1e38, heads that train alone separate the examples, and then all gradients are 0.
    """
    for rate, expected in ((np.inf, 1), (0.01, -1)):
        state, log, _ = subject.play(3, client_lr=rate)
        assert log.participation.since == expected and int(log.diverged_at) == -1
        assert tree.all_finite(state)
        assert not log.participation.trained[log.participation.not_finite > 0].any()


def message_sizes_are_those_of_the_messages(subject: Subject) -> tuple[int, int]:
    """Returns the bytes of a message and of an upload."""
    algorithm = subject.experiment.build(subject.hparams, 0)
    state = jax.eval_shape(subject.program.start, fixed_key(), subject.hparams, subject.data)
    down, up = message_bytes(algorithm, subject.data)[0]

    def both(server, memories, rows):
        message = algorithm.server.download(server, 0, 0)
        memory, data = tree.take((memories, rows), 0)
        return message, algorithm.client.local(message, memory, data, fixed_key())[1]

    everyone = algorithm.client_data(subject.data)
    sent, upload = jax.eval_shape(both, state.server, state.clients[0], everyone)
    number = messages_per_client(algorithm, subject.data)
    assert (down, up) == (bytes_of(sent) * number, bytes_of(upload) * number)
    return down, up


def an_untrained_client_uploads_what_the_method_says(subject: Subject) -> None:
    """Without examples and with rates of 0, where rates end in `RATES`."""
    rates = {name: 0.0 for name in subject.hparams if name.endswith(RATES)}
    method = subject.experiment.build(floats(subject.hparams, **rates), 0)

    @jax.jit
    def both(state, data):
        message = method.server.download(state.server, 0, 1)
        memory, train = tree.take((state.clients[0], data.train), 1)
        none = train._replace(count=jnp.zeros_like(train.count))
        return (
            method.client.local(message, memory, ClientData(none, none), fixed_key())[1],
            method.client.untrained(message, memory, ClientData(none, none)),
        )

    assert_equal(*both(subject.play(2)[0], subject.data))


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
        subject.experiment, subject.config(local_steps=STEPS), int(state.round), None
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
        # A schedule ends after the last round, which is the second one for both.
        ends = [name for name in config.hparams if name.endswith("_horizon")]
        config = change(config, {f"hparams.{name}": 2.0 for name in ends})
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


def a_round_without_attackers_is_an_honest_one_bit_for_bit(
    subject: Subject, attack: str = "poisoning"
) -> None:
    honest = subject.after_a_round(attack__name=attack)
    assert_equal(honest, subject.after_a_round())


def poison_of_lambda_minus_one_is_honest_bit_for_bit(subject: Subject) -> None:
    """With another lambda it is not, unless nothing is sent."""
    experiment, _ = subject.with_attackers(attack__name="poisoning")
    data = experiment.federation.data
    cohort, rank = Cohort(jnp.arange(7), jnp.ones(7)), jnp.asarray(data.attack_rank)
    algorithm = experiment.build(experiment.hparams, 0)

    @jax.jit
    def untrained(state):
        drawn = Drawn((cohort.ids,), (cohort,), (algorithm.client_data(data),))
        return untrained_uploads(algorithm, state, drawn)[0]

    start = subject.program.start(fixed_key(), subject.hparams, subject.data)
    before, rng = untrained(start), np.random.default_rng(0)
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


def absent_clients_do_not_count(subject: Subject) -> None:
    """A round of five clients, of whom three are present, is the round of these three.

    Raises `LeftOut` if the method needs all clients, or draws them itself.
    """
    experiment, data = subject.experiment, jax.tree.map(jnp.asarray, subject.data)
    needs = experiment.build(experiment.hparams, 0)
    if needs.needs.everyone or needs.server.sample is not None:
        raise LeftOut(f"{subject.method} needs all clients, or draws them itself")
    inputs = fixed_key(), subject.hparams, data
    start = subject.program.start(*inputs)

    @functools.partial(jax.jit, static_argnums=0)
    def played(everybody, state, hparams):
        algorithm = experiment.build(hparams, 0)
        some = (1, 2, 4) if everybody else (1, 2, 3, 4, 5)
        ids = jnp.array(some, jnp.int32)
        cohort = Cohort(ids, data.train.count[ids].astype(jnp.float32))
        if not everybody:
            cohort = cohort.of_those(jnp.array([True, True, False, True, False]))
            ids, cohort = present_first(ids, cohort)
        rows = tree.take(algorithm.client_data(data), cohort.ids)
        drawn = Drawn((cohort.ids,), (cohort,), (rows,))
        groups = tuple(group._replace(cohort_size=len(some)) for group in experiment.groups)
        state, *_ = play_round(
            algorithm,
            state,
            fixed_key(),
            draw=lambda state, key: drawn,
            groups=groups,
            mesh=None,
            poison=Poison(),
        )
        return state

    three, five = (played(every, start, subject.hparams) for every in (True, False))
    assert_equal(five, three, rtol=1e-4, atol=1e-6)


def compression_without_loss_changes_nothing(subject: Subject) -> None:
    """Rounds with all numbers of all updates have the same bits, and nothing is lost.

    Raises `LeftOut` if the method uploads no floats.
    """
    fields = {"compression__name": "top_k", "compression__feedback": True}
    config = subject.config(local_steps=STEPS, hparams__compression_share=1.0, **fields)
    try:
        with warnings.catch_warnings():  # an upload becomes longer by the places
            warnings.simplefilter("ignore", RuntimeWarning)
            experiment = build_experiment(config, federation())
    except ValueError as error:
        if not str(error).startswith("compression.name='top_k' has no effect"):
            raise
        raise LeftOut(str(error)) from error
    program = program_of(experiment, config)

    def played(program, hparams):
        inputs = fixed_key(), floats(hparams), subject.data
        start = program.start(*inputs)
        return program.advance(start, *inputs, jnp.int32(2))[0]

    whole = played(subject.program, subject.experiment.hparams)
    sent = played(program, experiment.hparams)
    assert_equal(sent.server, whole.server)
    for ours, theirs in zip(sent.clients, whole.clients, strict=True):
        assert_equal(ours.memory, theirs)
        assert not np.any(ours.lost)


def a_distant_deadline_changes_nothing(subject: Subject, rtol: float = 0.0) -> None:
    """Rounds with a clock, and shares of steps that are all 1, have the same bits.

    Args:
      rtol: above 0, the relative difference of numbers that the compiler rounds in another way.

    Raises `LeftOut` if the method plans how long clients take.
    """
    fields = {"stragglers__name": "uniform", "hparams__straggler_share": 0.0}
    fields |= {"clock__name": "deadline", "hparams__deadline": 1e9, "clock__late": "shorten"}
    algorithm = subject.experiment.build(subject.experiment.hparams, 0)
    if algorithm.server.seconds is not None:
        raise LeftOut(f"{subject.method} plans how long clients take")
    if algorithm.needs.everyone or algorithm.defend is not None:  # so nobody is ever absent
        fields |= {"clock__name": "devices"}
        del fields["hparams__deadline"], fields["clock__late"]
    config = subject.config(local_steps=STEPS, **fields)
    experiment = build_experiment(config, federation())

    def played(experiment, program):
        inputs = fixed_key(), floats(experiment.hparams), subject.data
        start = program.start(*inputs)
        return program.advance(start, *inputs, jnp.int32(2))[0]

    plain = played(subject.experiment, subject.program)
    timed = played(experiment, program_of(experiment, config))
    assert_equal((timed.server, timed.clients), (plain.server, plain.clients), rtol=rtol)
    assert 0 < float(timed.seconds) < 1e6


def a_veto_fits(subject: Subject) -> None:
    """A round keeps the shape of the state, and an evaluation has the scores at all points."""
    a_round_keeps_the_shape_of_the_state(subject)
    program, inputs = subject.program, (fixed_key(), subject.hparams, subject.data)
    state = jax.eval_shape(program.start, *inputs)
    evaluated = jax.eval_shape(program.evaluate, state, *inputs)
    assert set(evaluated.scores["test"]) == {"G", "L", "P"}


def privacy_keeps_the_shape_of_the_state(subject: Subject, privacy: str = "central") -> None:
    """Raises `LeftOut` if the method refuses it."""
    fields = {"privacy__name": privacy, "cohort": "poisson", "compression__name": "sign"}
    try:
        experiment = build_experiment(subject.config(**fields), federation())
    except ValueError as error:
        if not str(error).startswith((f"privacy.name={privacy!r} ", "algorithm.name=")):
            raise
        raise LeftOut(str(error)) from error
    program = program_of(experiment, subject.config(**fields))
    inputs = (fixed_key(), floats(experiment.hparams), experiment.federation.data)
    before = jax.eval_shape(program.start, *inputs)
    after, _ = jax.eval_shape(program.advance, before, *inputs, jnp.int32(1))
    assert before == after


def a_defence_keeps_the_shape_of_the_state(subject: Subject, defence: str = "clip") -> None:
    """After compression and an attack. Raises `LeftOut` if the method refuses the defence."""
    fields = {"defence__name": defence, "attack__name": "sign_flip"}
    fields |= {"compression__name": "quantise", "compression__feedback": True}
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
