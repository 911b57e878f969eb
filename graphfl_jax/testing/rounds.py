"""Checks of rounds, runs and evaluations. Each takes a `Subject`, and fails by an assertion."""

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax import tree
from graphfl_jax.build import build_experiment
from graphfl_jax.core import ClientData
from graphfl_jax.data import relations
from graphfl_jax.data.new_clients import select_clients
from graphfl_jax.examples import Examples
from graphfl_jax.memory import bytes_of
from graphfl_jax.program import streams_of
from graphfl_jax.rounds import message_bytes, messages_per_client, sample_cohorts
from graphfl_jax.runs.session import program_of
from graphfl_jax.testing.subject import (
    RATES,
    LeftOut,
    Subject,
    assert_equal,
    federation,
    fixed_key,
    floats,
    stack,
)


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
    program, inputs = (
        program_of(experiment, config),
        (fixed_key(), subject.hparams, subject.data),
    )
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
        """Every axis of size seven is an axis of clients."""

        def permute_leaf(leaf):
            leaf = np.asarray(leaf)
            for axis, size in enumerate(leaf.shape):
                leaf = np.take(leaf, order, axis) if size == 7 else leaf
            return leaf

        return jax.tree.map(permute_leaf, values)

    other_data = select_clients(data, order)
    state, _ = program.advance(start, fixed_key(), rates, data, np.int32(1))
    other, _ = program.advance(permute(start), fixed_key(), rates, other_data, np.int32(1))
    assert_equal(permute(state), other, rtol=1e-4, atol=1e-5)
    scores, *_ = program.evaluate(state, fixed_key(), rates, data)
    other_scores, *_ = program.evaluate(other, fixed_key(), rates, other_data)
    assert_equal(permute(scores), other_scores, atol=1e-5)


def _first_cohort(subject, state, data):
    """The ids of the clients that the program draws for the first round."""
    algorithm = subject.experiment.build(subject.hparams, 0)
    key = jax.random.fold_in(streams_of(fixed_key()).rounds, 0)
    key_cohort = jax.random.split(key, 4)[0]
    groups = subject.experiment.groups
    _, (cohort,) = sample_cohorts(algorithm, state.server, data, key_cohort, groups)
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
    """At 1e38, heads that train alone separate the examples, and then all gradients are 0."""
    for rate, expected in ((np.inf, 1), (0.01, -1)):
        _, log, _ = subject.play(3, client_lr=rate)
        assert int(log.diverged_at) == expected


def message_sizes_are_those_of_the_messages(subject: Subject) -> tuple[int, int]:
    """Returns the bytes of a message and of an upload."""
    algorithm = subject.experiment.build(subject.hparams, 0)
    state = jax.eval_shape(subject.program.start, fixed_key(), subject.hparams, subject.data)
    down, up = message_bytes(algorithm, state, subject.data)

    def both(server, memories):
        message = algorithm.server.download(server, 0, 0)
        rows = algorithm.data_of_first_client(subject.data)
        return message, algorithm.client.untrained(message, tree.take(memories, 0), rows)

    sent, untrained = jax.eval_shape(both, state.server, state.clients[0])
    number = messages_per_client(algorithm, subject.data)
    assert (down, up) == (bytes_of(sent) * number, bytes_of(untrained) * number)
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
