"""Clients that do not answer, traces and stragglers: their laws, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import run
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.core import Cohort, State
from graphfl_jax.draws import draw_those_up
from graphfl_jax.examples import Examples
from graphfl_jax.program import Program
from graphfl_jax.rounds import sample_cohorts
from graphfl_jax.testing.subject import assert_equal, federation, small_config
from graphfl_jax.trainers import epoch_trainer, sgd_trainer
from graphfl_jax.wire.availability import dropout, in_turn, trace, uniform_stragglers

CONFIG = small_config("ditto", availability__name="dropout", rounds=6, eval_every=6)
FOUR = Cohort(jnp.arange(4), jnp.ones(4))
KEYS = jax.random.split(jax.random.key(1), 5000)


def presence(law):
    """Who of four clients takes part, [5000, 4] bool."""
    return np.asarray(jax.vmap(lambda key: law(key, (FOUR,), (9,), ())[0].present)(KEYS))


def test_clients_drop_out_independently_with_the_same_probability():
    rounds = presence(dropout(dropout_share=0.3).law)
    np.testing.assert_allclose(rounds.mean(axis=0), 0.7, atol=5 * 0.46 / 5000**0.5)
    both_present = np.mean(rounds[:, 0] & rounds[:, 1])
    np.testing.assert_allclose(both_present, 0.49, atol=5 * 0.5 / 5000**0.5)


def test_laws_hold_together_with_keys_of_their_own():
    rounds = presence(in_turn([dropout(dropout_share=0.5).law] * 2))
    np.testing.assert_allclose(rounds.mean(), 0.25, atol=5 * 0.43 / 20_000**0.5)
    assert in_turn([]) is None


@pytest.mark.slow
def test_without_dropout_a_run_is_the_same_bit_for_bit_and_with_all_nothing_moves(tmp_path):
    """The share is traced, so that all of these runs have one program."""
    plain = run(change(CONFIG, {"availability.name": ""}), federation(), keep_in=False)
    results = [
        run(change(CONFIG, {"hparams.dropout_share": share}), federation(), keep_in=tmp_path)
        for share in (0.0, 0.3, 1.0)
    ]
    finals = [result.results["scores"]["final"] for result in results]
    assert finals[0] == plain.results["scores"]["final"]
    trained = [sum(result.results["rounds_trained"]) for result in results]
    assert trained[0] == 24 and trained[2] == 0  # six rounds of four clients
    assert 8 < trained[1] < 24  # 16.8 in the mean
    start = run(change(CONFIG, {"rounds": 1, "hparams.dropout_share": 1.0}), federation())
    assert start.results["scores"]["final"]["P"] == finals[2]["P"]


# ------------------------------------------------------------------------------------ traces

TRACE = """client,time,state
a,0,up
a,3,down
b,2,up
b,2.5,up
c,1,down
c,4,up
"""


def up_by_hand(time):
    """When the clients of `TRACE` are up; b and c begin in the state that their first line
    ends."""
    return [0 <= time < 3, time >= 2, time < 1 or time >= 4]


@pytest.mark.parametrize("repeat", [0.0, 5.0])
def test_clients_are_up_when_the_trace_says_so(tmp_path, repeat):
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    made = trace(client_names=("a", "b", "c"), file=str(file), trace_repeat=repeat)
    for time in np.arange(0, 12, 0.25):
        expected = up_by_hand(time % repeat if repeat else time)
        assert made.up(jnp.arange(3), jnp.float32(time)).tolist() == expected
        assert made.up(jnp.array([2, 0]), jnp.float32(time)).tolist() == [
            expected[2],
            expected[0],
        ]


def test_a_cohort_is_drawn_from_those_who_are_up_and_other_places_are_empty():
    up = jnp.array([False, True, False, True, True, False])
    draws = np.asarray(jax.vmap(lambda key: draw_those_up(key, up, 2))(KEYS))
    pairs, counts = np.unique(draws, axis=0, return_counts=True)
    assert pairs.tolist() == [[1, 3], [1, 4], [3, 4]]
    np.testing.assert_allclose(counts / 5000, 1 / 3, atol=5 * 0.47 / 5000**0.5)
    all_up = np.asarray(jax.vmap(lambda key: draw_those_up(key, up, 4))(KEYS))
    assert all({1, 3, 4} < set(ids) for ids in all_up)
    others = [next(i for i in ids if i not in (1, 3, 4)) for ids in all_up.tolist()]
    shares = np.bincount(others, minlength=6)[[0, 2, 5]] / 5000
    np.testing.assert_allclose(shares, 1 / 3, atol=5 * 0.47 / 5000**0.5)


def test_a_round_has_those_who_are_up_at_its_number(tmp_path):
    """Clients 0 to 6 of these data; two are up in the first round, and all others later."""
    names = federation().clients
    file = tmp_path / "trace.csv"
    lines = [f"{name},1,{'down' if i in (2, 5) else 'up'}" for i, name in enumerate(names)]
    file.write_text("\n".join(["client,time,state", *lines]))
    config = small_config("fedavg", availability__name="trace", availability__file=str(file))
    experiment = build_experiment(config, federation())
    algorithm = experiment.build(experiment.hparams, 0)
    counts = jnp.asarray(federation().data.train.count)
    for played, expected in ((0, {2, 5}), (1, {0, 1, 3, 4, 6})):
        state = State((), (), jnp.int32(played))
        _, (cohort,) = sample_cohorts(
            algorithm, state, counts, jax.random.key(3), experiment.groups
        )
        there = set(cohort.ids[cohort.present].tolist())
        assert there <= expected and len(there) == min(4, len(expected))
        assert float(jnp.sum(cohort.weights > 0)) == len(there)


@pytest.mark.slow
def test_an_edited_trace_is_read_again_and_is_not_resumed(tmp_path):
    file, out = tmp_path / "trace.csv", tmp_path / "run"
    names = federation().clients
    file.write_text("\n".join(["client,time,state", *(f"{name},0,up" for name in names)]))
    config = small_config(
        "fedavg",
        availability__name="trace",
        availability__file=str(file),
        rounds=2,
        eval_every=2,
    )
    first = run(config, federation(), out=out)
    assert sum(first.results["rounds_trained"]) == 8
    file.write_text("\n".join(["client,time,state", *(f"{name},0,down" for name in names)]))
    second = run(config, federation())
    assert sum(second.results["rounds_trained"]) == 0
    with pytest.raises(ValueError, match="availability.file differs from that of the run"):
        run(change(config, {"rounds": 3}), federation(), out=out, resume=True)


@pytest.mark.parametrize(
    "lines, message",
    [
        (["client,when,state"], "the header is client,when,state; make it client,time,state"),
        (["client,time,state", "x,0,up"], "line 2: client 'x' is none of the 2 clients"),
        (["client,time,state", "a,-1,up"], "line 2: time '-1' is no number from 0 on"),
        (
            ["client,time,state", "a,0,on"],
            "line 2: state 'on' is unknown; choose from up, down",
        ),
        (
            ["client,time,state", "a,0,up", "a,0.0,down"],
            "line 3: client 'a' has two lines with time 0.0; leave one out",
        ),
        (
            ["client,time,state", "a,0,up"],
            "has no line of 1 of 2 clients, the first is 'b'; add one, such as b,0,up",
        ),
    ],
)
def test_a_damaged_trace_is_refused_in_one_line(tmp_path, lines, message):
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(lines))
    with pytest.raises(ValueError) as error:
        trace(client_names=("a", "b"), file=str(file))
    assert message in str(error.value) and "\n" not in str(error.value)


# -------------------------------------------------------------------------------- stragglers


def test_stragglers_take_each_number_of_steps_with_the_same_probability():
    law = uniform_stragglers(
        straggler_share=0.4, steps=lambda weights: jnp.full(len(weights), 5.0)
    )
    work = jax.vmap(lambda key: law(key, (FOUR,), (9,), ())[0].work)(KEYS)
    steps, counts = np.unique(np.round(5 * work), return_counts=True)
    assert steps.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(work * 5, np.round(work * 5), atol=1e-6)
    expected = [0.08, 0.08, 0.08, 0.08, 0.68]
    np.testing.assert_allclose(counts / 20_000, expected, atol=5 * 0.5 / 20_000**0.5)


def example_of():
    x = np.random.default_rng(3).normal(size=(7, 2)).astype(np.float32)
    return Examples(jnp.asarray(x), jnp.asarray(x[:, 0]), jnp.int32(7))


def squared(w, batch, key):
    real = (jnp.arange(len(batch.y)) < batch.count).astype(jnp.float32)
    errors = jnp.square(batch.x @ w - batch.y) * real
    return jnp.sum(errors) / batch.count.astype(jnp.float32)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_share_of_the_steps_is_a_shorter_training(batch_size):
    """The first half of six steps is the training of three steps, loss included."""
    key, w = jax.random.key(2), jnp.ones(2)

    def trained(steps, work):
        trainer = sgd_trainer(optax.sgd(0.1, momentum=0.5), steps=steps, batch_size=batch_size)
        return jax.jit(trainer, static_argnums=0)(squared, w, example_of().with_work(work), key)

    assert_equal(trained(6, jnp.float32(0.5)), trained(3, None), rtol=1e-6)
    assert_equal(trained(6, jnp.float32(1.0)), trained(6, None), rtol=1e-6)
    assert_equal(trained(6, jnp.float32(0.01)), trained(1, None), rtol=1e-6)


def test_a_share_of_epochs_ends_within_one():
    """Two epochs of seven examples in batches of three are six steps; a third of them are the
    first two of the first epoch."""
    key, w, examples = jax.random.key(2), jnp.ones(2), example_of()
    train = epoch_trainer(optax.sgd(0.1), epochs=2, batch_size=3)
    ended, metrics = train(squared, w, examples.with_work(jnp.float32(1 / 3)), key)
    order = np.argsort(jax.random.uniform(jax.random.split(key, 2)[0], (7,)))
    expected, losses = np.ones(2), []
    x, y = np.float64(examples.x), np.float64(examples.y)
    for rows in (order[:3], order[3:6]):
        errors = x[rows] @ expected - y[rows]
        losses.append(np.mean(errors**2))
        expected = expected - 0.1 * 2 / 3 * x[rows].T @ errors
    np.testing.assert_allclose(ended, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrep", "perfedavg", "scaffold"])
def test_with_one_step_each_a_run_is_that_of_one_local_step(method):
    """All clients are stragglers of one step; FedRep trains each part for one step."""
    fields = {"rounds": 2, "eval_every": 2, "hparams.client_lr": 0.1}
    config = change(small_config(method), fields)
    experiment = build_experiment(
        change(config, {"stragglers.name": "uniform", "local_steps": 4}), federation()
    )
    fewest = {"local_steps": 2 if method == "fedrep" else 1}
    plain = build_experiment(change(config, fewest), federation())

    def least(key, cohorts, sizes, server):
        return tuple(c._replace(work=jnp.full(len(c.ids), 0.25)) for c in cohorts)

    def played(experiment, attend):
        def build(hparams, round):
            return experiment.build(hparams, round).replacing(attend=attend)

        program = Program(build, experiment.groups)
        inputs = jax.random.key(0), experiment.hparams, experiment.federation.data
        inputs = jax.tree.map(jnp.asarray, inputs)
        state = program.start(*inputs)
        return jax.jit(program.advance)(state, *inputs, jnp.int32(2))[0]

    some, few = played(experiment, least), played(plain, None)
    assert_equal(some.server, few.server, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"defence__name": "clip"},
            "defence.name='clip' compares the updates of a cohort, of which some are absent "
            "with availability.name=dropout; leave availability.name empty",
        ),
        ({"hparams__dropout_share": 1.1}, "hparams.dropout_share=1.1"),
        ({"availability__name": "drop"}, "availability.name='drop' is unknown"),
        ({"availability__name": "trace"}, "availability.file is empty"),
        ({"stragglers__name": "normal"}, "stragglers.name='normal' is unknown"),
    ],
)
def test_absence_that_does_not_fit_is_refused_in_one_line(fields, message):
    with pytest.raises(ValueError) as error:
        build_experiment(
            small_config("fedavg", **{"availability__name": "dropout"} | fields), federation()
        )
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
