"""New clients: which clients are held out of training, and what the training graph has."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group, group_clients, groups_together
from graphfl_jax.runs.batch import Trial, run_trials
from graphfl_jax.runs.session import program_of
from graphfl_jax.testing.subject import assert_equal
from graphfl_jax.wire.attacks import with_attack_order
from tests.federations import small_config, two_clusters

SLOW = pytest.mark.slow
KEEPING = ("ditto", "scaffold")  # clients that keep something
ALONE = ("cfl", "flha_ghn", "panacea_flha")  # whose new clients cannot join together
FITTING = [name for name in ALGORITHMS if name not in ALONE]
QUICK = ("fedavg", "pfedgat")
NEW = {"new_clients__fraction": 0.3, "new_clients__rounds": 2}
TOGETHER = NEW | {"new_clients__join": "together"}


def edges_by_name(data, names):
    graph = data.graph
    return {(names[i], names[j]) for i, j in zip(graph.senders, graph.receivers, strict=True)}


def parts(data):
    return [data.train, *(data.evals[name] for name in sorted(data.evals))]


@pytest.mark.parametrize("graph", ["inductive", "transductive"])
@pytest.mark.parametrize("seed", [0, 1])
def test_new_clients_come_last_and_all_clients_keep_their_data(graph, seed):
    before = two_clusters()
    after = hold_out(before, fraction=0.3, graph=graph, seed=seed)
    assert after.new_clients == 2 and after.sha256 == before.sha256
    assert sorted(after.clients) == sorted(before.clients)
    assert after.clients[:5] == tuple(sorted(after.clients[:5]))

    order = [before.clients.index(name) for name in after.clients]
    for data, clients in ((after.everyone, order), (after.data, order[:5])):
        for part, original in zip(parts(data), parts(before.data), strict=True):
            for leaf, expected in zip(*map(jax.tree.leaves, (part, original)), strict=True):
                np.testing.assert_array_equal(leaf, expected[clients])
    edges = edges_by_name(before.data, before.clients)
    between_training_clients = {e for e in edges if not set(e) & set(after.clients[5:])}
    assert edges_by_name(after.everyone, after.clients) == edges
    expected = between_training_clients if graph == "inductive" else edges
    assert edges_by_name(after.data, after.clients) == expected
    assert len(after.data.graph.nodes) == (5 if graph == "inductive" else 7)


@pytest.mark.parametrize(
    "method, changes",
    [
        ("fedamp", {}),
        ("cfl", {}),
        ("pfedgat", {"algorithm__attention": "direct", "algorithm__feedback": "update"}),
        ("pfedgat", {"algorithm__attention": "given"}),
    ],
)
def test_servers_have_no_rows_of_new_clients_before_these_join(method, changes):
    """With relations to them in training, states have the shapes that they have without."""
    states = []
    for graph in ("inductive", "transductive"):
        whole = hold_out(two_clusters(), fraction=0.3, graph=graph, seed=0)
        config = small_config(method, new_clients__fraction=0.3, **changes)
        experiment = build_experiment(config, whole)
        program = Program(
            experiment.build, groups=(Group(4),), joined=experiment.joined
        ).compiled()
        given = (jax.random.key(0), experiment.hparams)
        before = jax.eval_shape(program.start, *given, whole.data)
        after = jax.eval_shape(program.admit, before, *given, whole.everyone)
        states.append((before, after))
    inductive, transductive = states
    assert inductive == transductive
    sizes = [
        {size for leaf in jax.tree.leaves(state) for size in leaf.shape} for state in inductive
    ]
    assert 5 in sizes[0] and 7 not in sizes[0] and 7 in sizes[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"new_clients__rounds": 0},
        {"rounds": 2},
        {"hparams__client_final": 0.1},
        {"client_schedule": "constant"},
    ],
)
def test_new_clients_need_a_learning_rate_only_if_they_train(changes):
    falling = {"client_schedule": "cosine", "hparams__client_horizon": 3.0, "rounds": 3}
    if changes.get("client_schedule") == "constant":
        del falling["hparams__client_horizon"]
    new = {"new_clients__fraction": 0.3, "new_clients__rounds": 1}
    whole = hold_out(two_clusters(), fraction=0.3, graph="transductive", seed=0)
    build_experiment(small_config("fedavg", **new | falling | changes), whole)


def test_attackers_that_are_neighbours_are_no_new_clients():
    whole = hold_out(two_clusters(), fraction=0.3, graph="transductive", seed=0)
    ranked = with_attack_order(whole, seed=0, placement="neighbours")
    assert sorted(ranked.data.attack_rank) == [0, 1, 2, 3, 4]


def test_new_clients_are_drawn_by_the_seed():
    drawn = [
        hold_out(two_clusters(), fraction=0.3, seed=seed).clients[5:] for seed in range(40)
    ]
    again = hold_out(two_clusters(), fraction=0.3, seed=7)
    assert again.clients[5:] == drawn[7]
    assert {name for pair in drawn for name in pair} == set(two_clusters().clients)


@pytest.mark.parametrize("fraction, new_clients", [(0.29, 2), (2 / 7, 2), (0.28, 1), (0.99, 6)])
def test_number_of_new_clients_is_rounded_down(fraction, new_clients):
    assert hold_out(two_clusters(), fraction=fraction, seed=0).new_clients == new_clients


@pytest.mark.parametrize("fraction, new_clients", [(0.1, 0), (1.0, 7), (1.5, 10)])
def test_fractions_without_new_or_without_training_clients_are_refused(fraction, new_clients):
    named = f"new_clients.fraction={fraction} makes {new_clients} of the 7 clients"
    with pytest.raises(ValueError, match=rf"{named}.*; set it in \[0.143, 1\), or to 0"):
        hold_out(two_clusters(), fraction=fraction, seed=0)


def test_new_clients_are_named_or_numbered():
    """The order of the names has no effect, and nothing is drawn."""
    before = two_clusters()
    names = before.clients
    for chosen in ([names[4], names[1]], [1, 4], ["4", "1"]):
        after = hold_out(before, clients=tuple(chosen), seed=3)
        assert after.clients[5:] == (names[1], names[4])
        assert after.clients[:5] == tuple(np.delete(names, [1, 4]))


@pytest.mark.parametrize(
    "clients, fraction, message",
    [
        (
            (9,),
            0.0,
            "^new_clients.clients has 9, which does not train in .* numbers from 0 to 6$",
        ),
        ((1, 1), 0.0, "^new_clients.clients has client 1, .* twice; name each once$"),
        (tuple(range(7)), 0.0, "^new_clients.clients has all 7 clients of .*; name fewer$"),
        ((1,), 0.3, "^new_clients.fraction=0.3 draws .* names them; leave one out$"),
    ],
)
def test_wrong_names_of_new_clients_are_refused(clients, fraction, message):
    with pytest.raises(ValueError, match=message):
        hold_out(two_clusters(), clients=clients, fraction=fraction, seed=0)


@pytest.mark.slow
def test_a_configuration_names_new_clients():
    config = small_config("fedavg", new_clients__clients=(2,), new_clients__rounds=1, rounds=2)
    result = graphfl_jax.run(config, two_clusters())
    joined = result.results["new_clients"]
    assert joined["clients"] == [two_clusters().clients[2]] and len(joined["curve"]) == 2


# ---------------------------------------------------------------- rounds with all clients


@functools.cache
def joined_by(method):
    """Five of seven clients after two rounds, and after the others have joined.

    The server has an optimiser with rows of clients, where the method can have one.

    Returns:
      The experiment, its program, its inputs, and the two states.
    """
    whole = hold_out(two_clusters(), fraction=0.3, graph="inductive", seed=0)
    config = small_config(method, **TOGETHER)
    if "server_optimizer" in config:
        config = change(config, {"server_optimizer": "adam"})
    if "attention" in config.algorithm:
        config = change(config, {"algorithm.attention": "direct"})
    experiment = build_experiment(config, whole)
    program = program_of(experiment, config)
    inputs = (jax.random.key(3), experiment.hparams)
    state = program.start(*inputs, whole.data)
    trained, _ = program.advance(state, *inputs, whole.data, np.int32(2))
    joined = program.admit(trained, *inputs, whole.everyone)
    return experiment, program, inputs, *jax.device_get((trained, joined))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", *(pytest.param(m, marks=SLOW) for m in KEEPING)])
def test_rounds_together_are_those_of_a_federation_of_all_clients(method):
    """Six of seven clients take part, as four of five did. All have been there from the start,
    and what the new ones know is put in by hand."""
    experiment, program, inputs, trained, joined = joined_by(method)
    everyone = experiment.federation.everyone
    after = program.adapt(program.adapt(joined, *inputs, everyone), *inputs, everyone)

    whole = experiment.federation._replace(data=everyone, everyone=None, new_clients=0)
    config = small_config(method, cohort_size=6)
    larger = program_of(build_experiment(config, whole), config)
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    first = {
        "fedavg": lambda w: (),
        "ditto": lambda w: w,
        "scaffold": lambda sent: zeros(sent.control),
    }[method](trained.server)
    memories = jax.tree.map(
        lambda known, new: jnp.concatenate([known, jnp.stack([new] * 2)]),
        trained.clients,
        (first,),
    )
    state = trained._replace(clients=memories)
    expected, _ = larger.advance(state, *inputs, everyone, np.int32(2))
    assert_equal(after, expected)
    moved = jax.tree.map(lambda a, b: np.any(a != b), after.server, trained.server)
    assert int(after.round) == 4 and all(jax.tree.leaves(moved))


def shapes(values):
    return {leaf.shape[:1] for leaf in jax.tree.leaves(values)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[SLOW] * (m not in QUICK)) for m in FITTING]
)
def test_a_round_together_keeps_the_state_of_the_known_and_its_shape(method):
    experiment, program, inputs, trained, joined = joined_by(method.replace("_", "-"))
    after = program.adapt(joined, *inputs, experiment.federation.everyone)
    assert jax.eval_shape(lambda: after) == jax.eval_shape(lambda: joined)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert all(len(leaf) == 7 for leaf in jax.tree.leaves(after.clients))
    states = [getattr(state.server, "opt_state", ()) for state in (trained, joined)]
    for before, now in zip(*map(jax.tree.leaves, states), strict=True):
        known = tuple(slice(size) for size in before.shape)
        np.testing.assert_array_equal(now[known], before)
        assert np.sum(np.abs(now)) == pytest.approx(np.sum(np.abs(before)), rel=1e-5)
    if method in ("panacea", "pfedgat"):  # moments of what the server has of each client
        assert (5,) in shapes(states[0]) and (7,) in shapes(states[1])


def test_a_cohort_together_has_the_share_of_training():
    def sizes(names, training, cohort_size):
        groups, joined = group_clients(names, training, cohort_size)
        together = groups_together(groups, joined, len(names))
        return [(group.name, group.cohort_size) for group in together]

    assert sizes([""] * 10, 8, 8) == [("", 10)]  # all, as in the paper of pFedGAT
    assert sizes([""] * 7, 5, 4) == [("", 6)]
    assert sizes([""] * 72, 60, 5) == [("", 6)]
    assert sizes(["a", "b", "a", "a", "b", "a"], 4, 2) == [("a", 2), ("b", 2)]


@SLOW
@pytest.mark.parametrize("method", ["fedavg", "ditto", "panacea", "pfedgat"])
def test_runs_together_are_the_same_resumed_and_at_once(method, tmp_path):
    config = small_config(method, **TOGETHER, rounds=2, eval_every=1, checkpoint_every=1)
    data = two_clusters()
    uncut = graphfl_jax.run(config, data).results["new_clients"]
    graphfl_jax.run(change(config, {"rounds": 1}), data, out=tmp_path)
    resumed = graphfl_jax.run(config, data, out=tmp_path, resume=True)
    assert resumed.results["new_clients"] == uncut and len(uncut["curve"]) == 3
    whole = hold_out(data, fraction=0.3, graph="inductive", seed=0)
    trials = [Trial({}, 0), Trial({"client_lr": 0.05}, 0)]
    ((_, outcome), _) = sorted(run_trials(config, {0: whole}, trials), key=lambda pair: pair[0])
    at_once = outcome.results["new_clients"]
    for expected, actual in zip(uncut["curve"], at_once["curve"], strict=True):
        for point in "GLP":
            np.testing.assert_allclose(
                actual[point]["per_client"], expected[point]["per_client"], atol=1e-5
            )


@pytest.mark.parametrize(
    "method, changes, message",
    [
        ("cfl", {}, "^new_clients.join='together' does not fit algorithm.name='cfl', whose"),
        ("panacea", {"defence__name": "monotone"}, "with defence.name='monotone', whose"),
        (
            "pfedhn",
            {"client_schedule": "cosine", "rounds": 3},
            "^client_schedule='cosine' has the learning rate 0 after rounds=3",
        ),
    ],
)
def test_methods_whose_server_cannot_play_on_are_refused(method, changes, message):
    whole = hold_out(two_clusters(), fraction=0.3, graph="inductive", seed=0)
    with pytest.raises(ValueError, match=message):
        build_experiment(small_config(method, **TOGETHER | changes), whole)
    alone = {"new_clients__join": "alone", "client_schedule": "constant"}
    build_experiment(small_config(method, **TOGETHER | changes | alone), whole)
