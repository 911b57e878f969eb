"""Relations that the server learns, and those to compare with: random ones, and none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.learned_relations import learn_relations, most_similar
from graphfl_jax.build import arrange, build_experiment
from graphfl_jax.data import GRAPHS, relations
from graphfl_jax.data.graphs import Learning
from graphfl_jax.program import depends_on
from graphfl_jax.runs.session import program_of
from graphfl_jax.testing import checks
from graphfl_jax.testing.subject import (
    Subject,
    assert_equal,
    fixed_key,
    floats,
    small_config,
    two_clusters,
)

LEARNED = {"data.graph": "learned", "data.neighbours": 2, "data.learned_every": 2}


@functools.cache
def subject_of(method="sfl", **changes):
    return Subject(method, LEARNED | {k.replace("__", "."): v for k, v in changes.items()})


def nearest(rows, candidates, neighbours):
    """`most_similar` in float64, one client at a time."""
    rows, numbers = np.asarray(rows, np.float64), np.flatnonzero(candidates)
    centred = rows - rows[numbers].mean(axis=0)
    expected = np.zeros((len(rows), len(rows)), bool)
    for i in range(len(rows)):
        cosines = sorted(
            (-centred[i] @ centred[j] / np.linalg.norm(centred[[i, j]], axis=1).prod(), j)
            for j in numbers
            if j != i
        )
        expected[i, [j for _, j in cosines[:neighbours]]] = True
    return expected


def graph_of(server):
    """The relations among those who have uploaded, as the rule says."""
    seen = np.asarray(server.seen)
    joined = nearest(server.rows, seen, 2) & seen[:, None]
    return joined | joined.T


def shares_of(related):
    """The cube of the mean over a client and its neighbours."""
    joined = np.asarray(related, np.float64) + np.eye(len(related))
    return np.linalg.matrix_power(joined / joined.sum(axis=1, keepdims=True), 3)


@pytest.mark.parametrize("neighbours, unseen", [(1, 0), (3, 0), (3, 5), (8, 2)])
def test_the_nearest_are_those_of_a_search_in_float64(neighbours, unseen):
    rng = np.random.default_rng(neighbours)
    rows = (5.0 + rng.normal(size=(9, 30))).astype(np.float32)
    candidates = np.arange(9) >= unseen
    rows[~candidates] = 1e6  # they must not count in the mean
    actual = np.asarray(most_similar(rows, jnp.asarray(candidates), neighbours))
    expected = nearest(rows, candidates, neighbours)
    np.testing.assert_array_equal(actual[candidates], expected[candidates])
    counts = np.minimum(neighbours, candidates.sum() - candidates)
    np.testing.assert_array_equal(actual.sum(axis=1), counts)


def test_relations_are_learned_every_second_round_from_the_last_uploads():
    subject = subject_of()
    servers = [subject.play(rounds)[0].server for rounds in range(5)]
    for server in servers[:2]:  # everyone alone
        assert not np.any(server.related)
        np.testing.assert_array_equal(server.server.mixing, np.eye(7))
    for server in servers[1:]:
        last, _ = tree.as_matrix(server.server.uploads)
        seen = np.asarray(server.seen)
        np.testing.assert_array_equal(server.rows[seen], last[seen])
        assert not np.any(server.rows[~seen])
    assert servers[1].seen.sum() == 4  # the cohort
    for server in (servers[2], servers[4]):
        np.testing.assert_array_equal(server.related, graph_of(server))
        np.testing.assert_allclose(server.server.mixing, shares_of(server.related), atol=1e-6)
    assert np.any(servers[3].rows != servers[2].rows)
    np.testing.assert_array_equal(servers[3].related, servers[2].related)
    np.testing.assert_array_equal(servers[3].server.mixing, servers[2].server.mixing)


@pytest.mark.slow
def test_updates_are_compared_where_they_shall_be():
    subject = subject_of(data__learned_from="update")
    before, after = (subject.play(rounds)[0].server for rounds in (3, 4))
    old, new = (tree.as_matrix(state.server.uploads)[0] for state in (before, after))
    drawn = np.any(np.asarray(old) != new, axis=1)
    sent = np.mean(before.server.mixing, axis=0) @ old  # w
    np.testing.assert_allclose(after.rows[drawn], (new - sent[None])[drawn], atol=2e-6)
    np.testing.assert_array_equal(after.rows[~drawn], before.rows[~drawn])
    np.testing.assert_array_equal(after.related, graph_of(after))


@pytest.mark.slow
def test_pfedgat_mixes_over_learned_relations():
    subject = subject_of("pfedgat", algorithm__attention="given")
    server = subject.play(4)[0].server
    joined = graph_of(server) + np.eye(7)
    np.testing.assert_array_equal(server.related, graph_of(server))
    expected = joined / joined.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(server.server.mixing, expected, atol=1e-6)


def with_edges(pairs):
    """The subjects' data with other relations."""
    return subject_of().data._replace(graph=relations.from_edges(7, pairs))


@pytest.mark.slow
def test_until_relations_are_learned_a_run_is_one_without_any_bit_for_bit():
    learned, _, scores = subject_of().play(1)
    alone, _, expected = Subject("sfl").play(1, data=with_edges([]))
    assert_equal(learned.server.server, alone.server)
    assert_equal(scores, expected)


@pytest.mark.slow
def test_with_all_clients_as_neighbours_a_run_is_one_with_all_relations():
    everyone = {"cohort_size": 7, "data.learned_every": 1, "data.neighbours": 6}
    learned, _, scores = Subject("sfl", LEARNED | everyone).play(3, client_lr=0.01)
    assert learned.server.related.sum() == 7 * 6
    pairs = np.stack(np.triu_indices(7, 1), axis=1)
    plain = Subject("sfl", {"cohort_size": 7})
    _, _, expected = plain.play(3, data=with_edges(pairs), client_lr=0.01)
    assert_equal(scores, expected, atol=1e-5)


@pytest.mark.parametrize(
    "check",
    [
        checks.a_round_keeps_the_shape_of_the_state,
        checks.a_run_in_pieces_is_the_whole_run_bit_for_bit,
        checks.relations_have_an_effect_exactly_where_they_are_needed,
        pytest.param(checks.vmapped_runs_are_the_looped_ones, marks=pytest.mark.slow),
        pytest.param(checks.clients_on_the_host_change_no_bit, marks=pytest.mark.slow),
        pytest.param(checks.new_clients_join_and_train, marks=pytest.mark.slow),
        pytest.param(checks.a_sharded_round_is_the_unsharded_one, marks=pytest.mark.slow),
    ],
)
def test_it_keeps_the_laws_of_methods(check):
    check(subject_of())


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_uncut_one(tmp_path):
    checks.a_resumed_run_ends_like_an_uncut_one(subject_of(), tmp_path)


def test_a_new_client_is_joined_by_its_first_upload():
    config = subject_of().config(new_clients__fraction=0.3)
    experiment = build_experiment(config, arrange(config, two_clusters()))
    program, data = program_of(experiment, config), experiment.federation
    inputs = (fixed_key(), floats(experiment.hparams))
    trained = program.start(*inputs, data.data)
    trained, _ = program.advance(trained, *inputs, data.data, np.int32(4))
    admitted = program.admit(trained, *inputs, data.everyone).server
    np.testing.assert_array_equal(admitted.related, np.pad(trained.server.related, (0, 2)))
    mean = tree.mean(trained.server.server.uploads, jnp.ones(5))
    for new in (5, 6):  # each is alone, with the mean of the known clients
        np.testing.assert_array_equal(admitted.server.mixing[new], np.eye(7)[new])
        sent = tree.take(admitted.server.uploads, new)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), sent, mean)
    state = program.admit(trained, *inputs, data.everyone)
    adapted = program.adapt(state, *inputs, data.everyone).server
    known = np.append(np.asarray(trained.server.seen), [False, False])
    np.testing.assert_array_equal(adapted.related[5:], nearest(adapted.rows, known, 2)[5:])
    np.testing.assert_array_equal(adapted.related[:5], admitted.related[:5])
    np.testing.assert_allclose(adapted.server.mixing, shares_of(adapted.related), atol=1e-6)
    assert adapted.seen[5:].all() and np.any(adapted.rows[5:] != 0, axis=1).all()


@pytest.mark.slow
def test_relations_are_learned_from_what_the_server_gets():
    """After compression, an attack and a defence."""
    parts = {"compression.name": "sign", "defence.name": "clip"}
    subject = Subject("sfl", LEARNED | parts)
    servers = [
        subject.after_a_round(ratio=ratio, attack__name="poisoning").server
        for ratio in (0.0, 0.5)
    ]
    for server in servers:
        seen, (kept, _) = np.asarray(server.seen), tree.as_matrix(server.server.uploads)
        np.testing.assert_array_equal(server.rows[seen], kept[seen])
    assert np.any(servers[0].rows != servers[1].rows)


@pytest.mark.slow
def test_only_clients_that_answer_are_joined():
    fields = {"data.neighbours": 6, "data.learned_every": 1, "availability.name": "dropout"}
    subject = Subject("sfl", LEARNED | fields)
    state, log, _ = subject.play(2, dropout_share=0.5)
    trained = np.asarray(log.participation.trained) > 0
    assert 1 < trained.sum() < 7
    np.testing.assert_array_equal(state.server.seen, trained)
    both = trained[:, None] & trained[None] & ~np.eye(7, dtype=bool)
    np.testing.assert_array_equal(state.server.related, both)


@pytest.mark.parametrize(
    "method, changes, message",
    [
        ("panacea", {}, "data.graph='learned' needs a server that mixes over relations, and "),
        ("fedavg", {}, "data.graph='learned' needs a server that mixes over relations, and "),
        ("pfedgat", {}, "data.graph='learned' needs a server that mixes over relations, and "),
        ("sfl", {"data__neighbours": 7}, "data.neighbours=7 must be at least 1 and less than"),
        ("sfl", {"data__learned_every": 0}, "data.learned_every=0 must be at least 1"),
        ("sfl", {"data__learned_from": "sum"}, "data.learned_from='sum' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(method, changes, message):
    with pytest.raises(ValueError) as error:
        config = small_config(method, data__graph="learned", **changes)
        build_experiment(config, two_clusters())
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_too_many_clients_and_panacea_without_any_relation_are_refused():
    method = subject_of().experiment.build(subject_of().hparams, 0)
    method = method.replacing(relate=lambda server, related: server)
    with pytest.raises(ValueError) as error:
        learn_relations(
            method, Learning(5, 1, "model"), method="sfl", num_clients=10_001, played=0
        )
    assert str(error.value) == (
        "data.graph='learned' holds N x N numbers, and N=10001 clients exceed 10000; choose "
        "another data.graph"
    )
    experiment = build_experiment(small_config(data__graph="none"), two_clusters())
    server = experiment.build(experiment.hparams, 0).server
    with pytest.raises(ValueError, match="^data.graph='none' gives algorithm.name='panacea'"):
        server.init(fixed_key(), relations.from_edges(1000, []))


def test_random_relations_join_each_client_to_as_many_others_by_the_seed():
    made = two_clusters(40)
    first, again, other = (
        GRAPHS["random"](made, seed=seed, neighbours=3) for seed in (0, 0, 1)
    )
    assert first.sha256 == again.sha256 != other.sha256
    matrix = np.asarray(relations.weight_matrix(first.data.graph))
    assert (matrix == matrix.T).all() and not matrix.diagonal().any()
    assert matrix.sum(axis=1).min() == 3 and 3 * 40 <= matrix.sum() <= 6 * 40
    counts = np.zeros((40, 40))
    for drawn in range(60):
        graph = GRAPHS["random"](made, seed=drawn).data.graph
        counts[graph.receivers, graph.senders] += 1
    share = counts.sum() / (60 * 40 * 39)
    spread = (share * (1 - share) * 60) ** 0.5
    assert np.abs(counts - 60 * share)[~np.eye(40, dtype=bool)].max() < 5 * spread


def test_random_relations_among_training_clients_are_those_without_new_ones():
    config = small_config(data__graph="random", data__neighbours=2, new_clients__fraction=0.3)
    whole = arrange(config, two_clusters())
    assert whole.new_clients == 2
    inner = np.asarray(relations.weight_matrix(whole.data.graph))
    actual = np.asarray(relations.weight_matrix(whole.everyone.graph))
    np.testing.assert_array_equal(actual[:5, :5], inner)
    assert not actual[5:, 5:].any() and (actual[5:].sum(axis=1) == 2).all()
    with pytest.raises(ValueError, match="data.neighbours=5 must be at least 1 and less than"):
        GRAPHS["random"](whole, seed=0, neighbours=5)


@pytest.mark.parametrize("graph", ["none", "learned"])
def test_no_relations_of_the_data_are_left_and_methods_that_need_some_are_built(graph):
    config = small_config("sfl", data__graph=graph)
    made = arrange(config, two_clusters())
    experiment = build_experiment(config, made)
    server = experiment.build(experiment.hparams, 0).server
    init = functools.partial(server.init, fixed_key())
    read = jax.tree.leaves(depends_on(init, two_clusters().data.graph))
    assert any(read) == (graph == "none")
    assert not len(made.data.graph.senders) and relations.num_clients(made.data.graph) == 7
    assert "\nno relations\n" in made.describe()
