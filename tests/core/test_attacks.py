"""Attacks and defences against NumPy, and which clients are malicious."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import graphfl_jax
from graphfl_jax import tree
from graphfl_jax.build import build_experiment
from graphfl_jax.commands.common.result_tables import attack_table
from graphfl_jax.core import ClientData, Cohort
from graphfl_jax.data import from_arrays, relations
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import task_of
from graphfl_jax.runs.batch import Trial, run_trials
from graphfl_jax.runs.results import by_malicious_neighbours, rejections
from graphfl_jax.runs.session import inputs_of, program_of
from graphfl_jax.wire.attacks import (
    ATTACKS,
    Attackers,
    backdoor,
    label_flip,
    label_flip_mirror,
    label_flip_wrong,
    poison_with,
    trigger,
    with_attack_order,
)
from graphfl_jax.wire.defences import CENTRES, DEFENCES, FILTERS
from graphfl_jax.wire.monotone import cosines
from graphfl_jax.wire.updates import vectors_of, with_updates
from graphfl_jax.wire.upload_attacks import UPLOAD_ATTACKS, Known
from tests.federations import small_config, two_clusters

KEY = jax.random.key(7)
UPDATES = np.random.default_rng(1).normal(size=(9, 20)) + 0.3  # [M, d]
SENT = np.random.default_rng(2).normal(size=(9, 20))  # [M, d]
HONEST = np.array([1, 0, 1, 1, 1, 0, 1, 1, 1], bool)


# ------------------------------------------------------------------------- attacks on data


def numbered_examples(size, count, targets=3):
    """One client's examples, numbered by x."""
    y = np.arange(size) % targets
    return Examples(np.arange(size, dtype=np.float32), np.int32(y), np.int32(count))


def test_labels_flip_to_all_classes_equally_and_wrong_labels_to_the_other_classes():
    """3000 draws: a share of 1/3 is within 0.04, four standard errors."""
    examples = numbered_examples(3000, 3000)
    flips = {"any": label_flip, "wrong": label_flip_wrong, "mirror": label_flip_mirror}
    flipped = {
        name: np.asarray(jax.jit(flip(train_data=examples, classes=3).poison)(examples, KEY).y)
        for name, flip in flips.items()
    }
    for y in flipped.values():
        assert set(y) == {0, 1, 2}
        np.testing.assert_allclose(np.bincount(y) / 3000, 1 / 3, atol=0.04)
    y = examples.y
    assert abs(np.mean(flipped["any"] == y) - 1 / 3) < 0.04
    assert not np.any(flipped["wrong"] == y)
    np.testing.assert_array_equal(flipped["mirror"], 2 - y)
    np.testing.assert_allclose(np.mean((flipped["wrong"] - y) % 3 == 1), 1 / 2, atol=0.04)


def test_targets_of_a_regression_are_permuted_among_the_real_examples():
    examples = numbered_examples(50, 40)
    examples = examples._replace(y=np.arange(100, dtype=np.float32).reshape(50, 2))
    poison = jax.jit(label_flip(train_data=examples, classes=0).poison)
    x, y, *_ = jax.device_get(poison(examples, KEY))
    np.testing.assert_array_equal(y[y[:40, 0].argsort()], examples.y[:40])
    assert not np.array_equal(y[:40], examples.y[:40])
    np.testing.assert_array_equal(x, examples.x)


@functools.cache
def pictures(clients=4, examples=20):
    """A federation of small random images with three labels."""
    rng = np.random.default_rng(0)
    shape = (clients * examples, 6, 6, 3)
    labels = rng.integers(0, 3, shape[0])
    labels[:3] = 0, 1, 2
    return from_arrays(
        rng.integers(0, 256, shape).astype(np.uint8),
        labels,
        np.repeat(range(clients), examples),
        edges=[(0, 1), (1, 2), (2, 3)],
    )


def test_a_backdoor_blends_the_trigger_into_a_share_of_images_and_sets_their_label():
    """Its success is measured on test images of other labels with the trigger."""
    train = pictures().data.train
    settings = {"target": 1, "trigger_size": 4, "attack_alpha": 0.2, "attack_share": 0.5}
    attack = backdoor(train_data=train, classes=3, **settings)
    own = tree.take(train, 0)._replace(count=np.int32(11))
    poisoned, goal = jax.jit(lambda own: (attack.poison(own, KEY), attack.goal(own)))(own)
    x, y = np.asarray(own.x, np.float64), own.y
    drawing, opaque = trigger((6, 6, 3), 4)
    assert opaque[2:, 2:].all() and opaque.sum() == 4 * 4 * 3
    assert drawing.min() >= 0 and drawing.max() <= 255 and np.ptp(drawing[2:, 2:]) > 200
    blended = np.round(x * (1 - 0.2 * opaque) + 0.2 * opaque * drawing)
    changed = (np.asarray(poisoned.x) != own.x).any(axis=(1, 2, 3))
    assert changed[:11].sum() == 6 and not changed[11:].any()  # round(5.5) is even
    np.testing.assert_allclose(np.asarray(poisoned.x)[changed], blended[changed], atol=1)
    np.testing.assert_array_equal(poisoned.y, np.where(changed, 1, y))

    others = np.flatnonzero((y != 1) & (np.arange(len(y)) < 11))
    assert int(goal.count) == len(others) and np.all(np.asarray(goal.y) == 1)
    np.testing.assert_allclose(np.asarray(goal.x)[: len(others)], blended[others], atol=1)


def poisoned_data(config, federation):
    """The data of a run after the attack on them."""
    poison = build_experiment(config, federation).poison(dict(config.hparams)).data
    return jax.jit(poison)(federation.data, KEY)


@pytest.mark.parametrize("name", ["label_flip", "label_flip_wrong"])
def test_only_training_labels_of_malicious_clients_are_changed(name):
    config = small_config("fedavg", attack__name=name, hparams__attack_ratio=0.4)
    federation = with_attack_order(two_clusters(padding=2), seed=3)
    before, after = federation.data, poisoned_data(config, federation)
    malicious = before.attack_rank < 3  # round(0.4 * 7)
    differs = (np.asarray(after.train.y) != before.train.y).any(axis=1)
    np.testing.assert_array_equal(differs, malicious)
    same = before._replace(train=before.train._replace(y=after.train.y))
    jax.tree.map(np.testing.assert_array_equal, after, same)


def test_attackers_with_equal_labels_draw_different_ones():
    """Two clients with 200 examples of class 0; half of 200 coins agree, give or take 4 * 7."""
    train = Examples(
        np.zeros((2, 200, 1), np.float32), np.zeros((2, 200), np.int32), np.full(2, 200)
    )
    data = two_clusters(2).data._replace(train=train, attack_rank=np.arange(2))
    attack = label_flip(train_data=train, classes=2)
    after = poison_with(attack, Attackers(jnp.float32(1.0), 2)).data(data, KEY)
    first, second = np.asarray(after.train.y)
    assert abs(np.sum(first == second) - 100) < 28


# -------------------------------------------------------------------------------- attackers


def test_attackers_are_named_and_a_number_is_a_name_where_one_is():
    """The clients of `two_clusters` have names without digits alone."""
    toy = two_clusters()
    first, second = toy.clients[:2]
    for given, expected in (((second,), [1]), ((1, first), [0, 1]), (("1",), [1])):
        attacked = with_attack_order(toy, clients=given, seed=0)
        assert np.flatnonzero(attacked.data.attack_rank < 0).tolist() == expected
    numbered = toy._replace(clients=("7", "0", *toy.clients[2:]))
    for given, expected in (((0,), [1]), ((7,), [0]), (("0", 7), [0, 1])):
        attacked = with_attack_order(numbered, clients=given, seed=0)
        assert np.flatnonzero(attacked.data.attack_rank < 0).tolist() == expected
    with pytest.raises(ValueError, match="has 1, which does not train .* such as '7'$"):
        with_attack_order(numbered, clients=(1,), seed=0)


def malicious(rank, ratio, num_clients):
    return np.asarray(Attackers(jnp.float32(ratio), num_clients).among(rank))


def test_attackers_of_a_ratio_attack_at_larger_ratios_too_and_the_seed_draws_them():
    federation = two_clusters(40)
    ranks = [with_attack_order(federation, seed=seed).data.attack_rank for seed in range(30)]
    again = with_attack_order(federation, seed=5).data.attack_rank
    np.testing.assert_array_equal(again, ranks[5])
    sets = [malicious(ranks[0], ratio, 40) for ratio in (0, 0.1, 0.3, 0.5, 1)]
    assert [attacks.sum() for attacks in sets] == [0, 4, 12, 20, 40]
    for fewer, more in zip(sets, sets[1:], strict=False):
        assert not np.any(fewer & ~more)
    often = np.mean([malicious(rank, 0.5, 40) for rank in ranks], axis=0)
    assert often.min() > 0.1 and often.max() < 0.9  # 30 draws of a half: four errors


def test_new_clients_never_attack():
    whole = hold_out(two_clusters(), fraction=0.3, graph="inductive", seed=0)
    drawn = with_attack_order(whole, seed=0)
    attacks = malicious(drawn.everyone.attack_rank, 1.0, 5)
    assert attacks.tolist() == [True] * 5 + [False] * 2


def test_attackers_can_be_neighbours_of_each_other():
    """A ring of twelve: attackers of any ratio are without gaps, and the seed draws where."""
    edges = [(i, (i + 1) % 12) for i in range(12)]
    ring = two_clusters(12)
    ring = ring._replace(data=ring.data._replace(graph=relations.from_edges(12, edges)))
    starts = set()
    for seed in range(4):
        rank = with_attack_order(ring, seed=seed, placement="neighbours").data.attack_rank
        assert sorted(rank) == list(range(12))
        for count in range(1, 12):
            attacks = malicious(rank, count / 12, 12)
            assert np.sum(attacks != np.roll(attacks, 1)) == 2
        starts.add(int(np.argmin(rank)))
    assert len(starts) > 1
    apart = ring._replace(data=ring.data._replace(graph=relations.from_edges(12, [])))
    drawn = [with_attack_order(apart, seed=1, placement=p) for p in ("random", "neighbours")]
    np.testing.assert_array_equal(*(one.data.attack_rank for one in drawn))
    with pytest.raises(
        ValueError, match="^attack.placement=neighbours is for .*leave one out$"
    ):
        with_attack_order(ring, seed=0, clients=(1,), placement="neighbours")


def test_attackers_can_be_named_among_the_clients_that_train():
    whole = hold_out(two_clusters(), fraction=0.3, graph="inductive", seed=0)
    named = with_attack_order(whole, clients=(whole.clients[3], 0), seed=0)
    for ratio in (0.0, 1e-6):
        attacks = malicious(named.everyone.attack_rank, ratio, 5)
        assert np.flatnonzero(attacks).tolist() == [0, 3]
    with pytest.raises(ValueError, match=r"^attack.clients has 'client 9'.*from 0 to 4$"):
        with_attack_order(whole, clients=("client 9",), seed=0)
    with pytest.raises(ValueError, match="which does not train"):
        with_attack_order(whole, clients=(whole.clients[-1],), seed=0)


@pytest.mark.slow
def test_results_name_the_attackers_and_score_the_other_clients():
    """The success is the share of triggered images with the target as their prediction."""
    with jax.numpy_dtype_promotion("standard"):  # a perceptron casts bytes implicitly
        check_results()


def check_results():
    config = small_config(
        "fedavg",
        attack__name="backdoor",
        hparams__attack_ratio=0.5,
        rounds=1,
        cohort_size=2,
        seed=1,
    )
    federation = pictures()
    ran = graphfl_jax.run(config, federation)
    summary = ran.results["attack"]
    ranked = with_attack_order(federation, seed=1)
    after = poisoned_data(config, ranked)
    changed = (np.asarray(after.train.y) != ranked.data.train.y).any(axis=1)
    ids = np.flatnonzero(changed).tolist()
    assert len(ids) == 2 and summary["ids"] == ids
    assert (summary["name"], summary["ratio"]) == ("backdoor", 0.5)
    assert summary["malicious"] == [federation.clients[i] for i in ids]
    # Relations join each client with the next one.
    shares = {i: np.mean([j in ids for j in (i - 1, i + 1) if 0 <= j < 4]) for i in range(4)}
    groups = summary["benign_by_malicious_neighbours"]
    names = {0.0: "none", 0.5: "up to half", 1.0: "more than half"}
    assert {i: own["share"] for own in groups for i in own["ids"]} == {
        i: names[share] for i, share in shares.items() if i not in ids
    }
    for own, point in itertools.product(groups, ("G", "L", "P")):
        scores = np.array(ran.results["scores"]["final"][point]["per_client"])
        np.testing.assert_allclose(own["scores"][point], scores[own["ids"]].mean())
    scores = ran.rows[-1]["scores"]
    for point in ("G", "L", "P"):
        own = ran.results["scores"]["final"][point]["per_client"]
        benign = summary["benign"][point]["per_client"]
        assert benign == [own[i] for i in range(4) if i not in ids]
        np.testing.assert_allclose(
            summary["success"][point], np.mean(scores["triggered"][point][~changed])
        )
    triggered = after.evals["triggered"]
    model = build_experiment(config, ranked).model
    predicted = np.argmax(model.apply(ran.state.server, triggered.x[1]), axis=-1)
    real = (predicted == 1)[: int(triggered.count[1])]
    np.testing.assert_allclose(scores["triggered"]["G"][1], real.mean(), rtol=1e-6)


def test_rejected_uploads_are_means_over_honest_and_malicious_clients():
    """Of five clients two attack. The relations also have two new clients, who are last."""
    whole = hold_out(two_clusters(), fraction=0.3, graph="transductive", seed=0)
    federation = with_attack_order(whole, clients=(1, 4), seed=0)
    config = small_config("fedavg", attack__name="sign_flip", new_clients__fraction=0.3)
    experiment = build_experiment(config, federation)
    found = rejections(experiment, np.array([0.1, 0.6, 0.2, 0.3, 1.0, 0.0, 0.0]))
    assert found["honest"] == pytest.approx(0.2) and found["malicious"] == pytest.approx(0.8)
    assert found["per_client"] == [0.1, 0.6, 0.2, 0.3, 1.0]
    # Clients 0 and 1 have been in no cohort, so the other attacker alone counts.
    found = rejections(experiment, np.array([-1.0, -1.0, 0.2, 0.3, 1.0, -1.0, -1.0]))
    assert (found["honest"], found["malicious"]) == (pytest.approx(0.25), 1.0)
    assert found["per_client"] == [None, None, 0.2, 0.3, 1.0]
    found = rejections(experiment, np.array([0.5, -1.0, 0.2, 0.3, -1.0, -1.0, -1.0]))
    assert found["malicious"] is None


def test_benign_clients_are_split_by_their_neighbours_where_new_clients_are_related_too():
    """Clients 0 and 1 attack; client 6, a neighbour of 4, is new."""
    graph = relations.from_edges(7, [(0, 2), (1, 2), (0, 3), (3, 5), (1, 4), (4, 6), (4, 5)])
    malicious = np.array([1, 1, 0, 0, 0, 0], bool)
    scores = {"P": np.array([0, 0, 1, 2, 3, 4], np.float32)}
    task = task_of("classification", None)
    assert by_malicious_neighbours(graph, malicious, np.arange(6), scores, task) == [
        {"share": "none", "ids": [5], "scores": {"P": 4.0}},
        {"share": "up to half", "ids": [3, 4], "scores": {"P": 2.5}},
        {"share": "more than half", "ids": [2], "scores": {"P": 1.0}},
    ]
    some = {"P": np.array([0, 1, 3], np.float32)}  # of clients 1, 2 and 4
    assert by_malicious_neighbours(graph, malicious, np.array([1, 2, 4]), some, task) == [
        {"share": "up to half", "ids": [4], "scores": {"P": 3.0}},
        {"share": "more than half", "ids": [2], "scores": {"P": 1.0}},
    ]


@pytest.mark.release
def test_trials_with_several_ratios_are_the_runs_of_each_ratio():
    """With a defence whose threshold is low, so that it rejects early."""
    settings = {"attack__name": "label_flip", "defence__name": "monotone", "rounds": 4}
    settings |= {"hparams__defence_threshold": -0.4, "seed": 2}
    config = small_config("panacea", **settings)
    federation = two_clusters()
    trials = [Trial({"attack_ratio": ratio}, 2) for ratio in (0.0, 0.3)]
    federations = {2: with_attack_order(federation, seed=2)}
    none, some = (
        outcome.results for _, outcome in run_trials(config, federations, trials, at_once=2)
    )
    assert none["attack"]["ids"] == []
    config = small_config("panacea", **settings, hparams__attack_ratio=0.3)
    single = graphfl_jax.run(config, federation).results
    assert len(single["attack"]["ids"]) == 2
    assert some["attack"]["ids"] == single["attack"]["ids"]
    assert some["rejected"] == single["rejected"] and single["rejected"]["malicious"] > 0
    for a, b in (
        (some["scores"]["final"], single["scores"]["final"]),
        (some["attack"]["benign"], single["attack"]["benign"]),
    ):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), a, b)


# ----------------------------------------------------------------------- attacks on uploads


def statistics(honest=HONEST):
    own = UPDATES[honest] if honest.any() else UPDATES
    return own.mean(axis=0), own.std(axis=0)


def min_max(honest=HONEST):
    """By bisection on gamma, as the attack's authors do."""
    mean, deviation = statistics(honest)
    own = UPDATES[honest]
    most = max(np.linalg.norm(a - b) for a in own for b in own)
    low, high = 0.0, 100.0
    for _ in range(60):
        gamma = (low + high) / 2
        far = max(np.linalg.norm(mean - gamma * deviation - u) for u in own)
        low, high = (gamma, high) if far <= most else (low, gamma)
    return np.broadcast_to(mean - low * deviation, UPDATES.shape)


def masked_poisoning():
    return -0.5 * UPDATES - 2.0 * SENT


BIASES = np.arange(20) % 5 == 0


def mean_norm(honest=HONEST):
    return np.mean([math.sqrt(u @ u) for u in UPDATES[honest]])


def dead_units():
    expected = UPDATES.copy()
    for u, x in zip(expected, SENT, strict=True):
        way = -2.0 - x[BIASES]
        u[BIASES] = way * min(1, 0.5 * mean_norm() / math.sqrt(way @ way))
    return expected


def shrinkage():
    pairs = zip(UPDATES, SENT, strict=True)
    return [u - 0.5 * mean_norm() * x / math.sqrt(x @ x) for u, x in pairs]


EXPECTED = {
    "poisoning": lambda: -0.5 * UPDATES,
    "sign_flip": lambda: -UPDATES,
    "alie": lambda: np.broadcast_to(statistics()[0] - 1.5 * statistics()[1], UPDATES.shape),
    "ipm": lambda: np.broadcast_to(-0.5 * statistics()[0], UPDATES.shape),
    "min_max": min_max,
    "masked_poisoning": masked_poisoning,
    "sleeper": lambda: UPDATES,
    "dead_units": dead_units,
    "shrinkage": shrinkage,
}
FLOATS = {
    "poisoning": {"attack_lambda": 0.5},
    "noise": {"attack_sigma": 3.0},
    "alie": {"attack_z": 1.5},
    "ipm": {"attack_epsilon": 0.5},
    "own_target": {"attack_target": 2.0, "attack_step": 0.25},
    "shared_target": {"attack_target": 2.0, "attack_step": 0.25},
    "masked_poisoning": {"attack_lambda": 0.5, "attack_mask": 2.0},
    "sleeper": {"attack_lambda": 0.5, "period": 5, "honest_rounds": 2},
    "drift": {"attack_length": 0.5},
    "dead_units": {"attack_length": 0.5, "attack_depth": 2.0},
    "shrinkage": {"attack_length": 0.5},
}


@functools.cache
def attack_of(name):
    """(updates, honest, played, sent) -> updates of an attack on uploads, compiled."""
    attack = ATTACKS[name](**FLOATS.get(name, {}))
    return jax.jit(lambda updates, *rest: attack(updates, known_of(*rest)))


def known_of(honest, played, sent, key=KEY):
    sent = jnp.float32(sent)
    biases = np.arange(sent.shape[1]) % 5 == 0
    return Known(jnp.asarray(honest), sent, jnp.arange(len(sent)), played, key, biases)


def attacked(name, honest=HONEST, updates=UPDATES, played=0, sent=SENT):
    return np.asarray(attack_of(name)(np.float32(updates), honest, played, sent))


@pytest.mark.parametrize("name", EXPECTED)
def test_attacks_on_uploads_are_those_of_numpy(name):
    tested = {*EXPECTED, "noise", "own_target", "shared_target", "drift"}
    assert tested == set(UPLOAD_ATTACKS)
    np.testing.assert_allclose(attacked(name), EXPECTED[name](), rtol=1e-4, atol=1e-4)


def test_noise_has_the_given_size_relative_to_each_update():
    """100,000 draws: a standard deviation within 1 %, four errors."""
    updates = np.random.default_rng(0).normal(size=(2, 50_000)) * np.array([[1.0], [0.01]])
    added = attacked("noise", np.ones(2, bool), updates, sent=updates) - updates
    np.testing.assert_allclose(added.std(axis=1) / updates.std(axis=1), 3.0, rtol=0.02)


def test_noise_of_attackers_and_rounds_is_independent():
    """Correlations of d independent pairs deviate by 1 / sqrt(d) from 0."""
    d, none = 10_000, jnp.zeros(2, bool)
    updates, change = jnp.ones((2, d)), ATTACKS["noise"](attack_sigma=3.0)
    rounds = [
        change(updates, known_of(none, played, updates, jax.random.key(played)))
        for played in (1, 2)
    ]
    correlations = np.corrcoef(np.concatenate(rounds))  # [4, 4], two attackers in two rounds
    assert np.abs(correlations - np.eye(4)).max() < 5 / np.sqrt(d)


@pytest.mark.parametrize("name", ["own_target", "shared_target"])
def test_targets_have_the_given_standard_deviation(name):
    """20,000 draws: the error is 1 / sqrt(40,000) = 0.5 % of it."""
    sent = jnp.zeros((2, 20_000))  # so that a whole step is the target
    change = ATTACKS[name](attack_target=2.0, attack_step=1.0)
    targets = change(sent, known_of(np.zeros(2, bool), 0, sent))
    np.testing.assert_allclose(np.std(targets, axis=1), 2.0, rtol=0.02)


@pytest.mark.parametrize("name", ["own_target", "shared_target"])
def test_updates_go_a_share_of_the_way_to_a_target(name):
    """A quarter of it from two models; so their difference is opposed to that of the models."""
    near, far = (attacked(name, sent=sent) for sent in (SENT, 3 * SENT))
    targets = SENT + 4 * near
    np.testing.assert_allclose(far - near, -0.25 * 2 * SENT, rtol=1e-4, atol=1e-4)
    assert np.allclose(targets, targets[0], atol=1e-4) == (name == "shared_target")
    assert np.abs(targets).max() < 2.0 * 6  # of normal numbers with standard deviation 2


def test_masked_poisoning_of_quadratics_is_monotone_by_the_bound():
    """Clients with Hessians of any condition; without the mask the same updates are not."""
    rng = np.random.default_rng(3)
    dimensions = SENT.shape[1]
    trained = np.diag(np.linspace(0, 1, dimensions))  # C of the docstring
    models = rng.normal(size=(2, 9, dimensions))
    minimum = rng.normal(size=dimensions)

    def uploaded(sent, mask):
        attack = ATTACKS["masked_poisoning"](attack_lambda=0.5, attack_mask=mask)
        known = known_of(np.zeros(9, bool), 0, sent)
        return np.asarray(attack(jnp.float32(-(sent - minimum) @ trained), known))

    def monotony(mask):
        first, second = (uploaded(sent, mask) for sent in models)
        return np.asarray(cosines(second - first, jnp.float32(models[1] - models[0])))

    condition = 1.0 / (1.0 - 0.5)
    assert monotony(1.0).max() <= -2 * math.sqrt(condition) / (1 + condition)
    assert monotony(0.0).min() > 0


def test_a_sleeper_is_honest_in_the_first_rounds_of_a_period():
    for played in range(12):
        honest = played % 5 < 2
        expected = UPDATES if honest else -0.5 * UPDATES
        np.testing.assert_allclose(attacked("sleeper", played=played), expected, rtol=1e-6)


def test_a_drift_is_the_same_for_all_attackers_and_models():
    added, later = (attacked("drift", played=t, sent=t * SENT) - UPDATES for t in (1, 2))
    np.testing.assert_allclose(np.linalg.norm(added[0]), 0.5 * mean_norm(), rtol=1e-4)
    np.testing.assert_allclose(added, np.broadcast_to(added[0], added.shape), atol=1e-5)
    np.testing.assert_allclose(later, added, atol=1e-5)
    assert np.count_nonzero(np.abs(added[0]) > 1e-3) > 15  # in all numbers, not along one


@pytest.mark.parametrize("name", ["drift", "dead_units", "shrinkage"])
def test_hidden_terms_leave_updates_of_quadratics_monotone(name):
    """Attackers are clients 1 and 5; the benign updates are the same for both models."""
    rng = np.random.default_rng(3)
    trained = np.diag(np.linspace(0.1, 1, SENT.shape[1]))  # C of the docstring
    others, models = HONEST[:, None], rng.normal(size=(2, 9, SENT.shape[1]))
    first, second = (
        attacked(name, updates=np.where(others, UPDATES, -sent @ trained), sent=sent)
        for sent in models
    )
    moves = models[1] - models[0]
    products = np.sum((second - first) * moves, axis=1)[~HONEST]
    honest = np.sum(-(moves @ trained) * moves, axis=1)[~HONEST]
    if name == "dead_units":  # whose biases do not train, but go to their target
        assert (products < 0).all()
        return
    assert (products <= honest + 1e-3).all()
    assert name != "drift" or np.allclose(products, honest, atol=1e-3)


def test_shrinkage_of_a_model_of_zeros_is_no_attack():
    np.testing.assert_allclose(attacked("shrinkage", sent=0 * SENT), UPDATES, rtol=1e-6)


def test_the_vectors_of_an_upload_are_its_biases_and_integers_are_left_out():
    upload = {"bias": jnp.zeros((3, 2)), "count": jnp.zeros((3, 4), int)}
    upload |= {"kernel": jnp.zeros((3, 2, 2)), "scale": jnp.zeros(3)}
    assert vectors_of(upload).tolist() == [True] * 2 + [False] * 5


@functools.cache
def share_of_dead_units(ratio):
    """Hidden units of FedAvg's model that are 0 for all examples, after 40 rounds."""
    config = small_config(
        "fedavg", attack__name="dead_units", hparams__attack_ratio=ratio, model__hidden=(8, 8)
    )
    experiment = build_experiment(config, with_attack_order(two_clusters(), seed=0))
    program, inputs = program_of(experiment, config), inputs_of(experiment, 0)
    state, _ = program.advance(program.start(*inputs), *inputs, jnp.int32(40))
    train, dead = experiment.federation.data.train, []
    x = np.concatenate([x[:n] for x, n in zip(train.x, train.count, strict=True)])
    for layer in jax.device_get(state.server)["body"].values():
        x = np.maximum(x @ layer["kernel"] + layer["bias"], 0)
        dead.extend(~x.any(axis=0))
    return np.mean(dead)


@pytest.mark.slow
def test_hidden_units_die():
    """Of 16 units, with three of seven clients malicious."""
    assert share_of_dead_units(0.0) < 0.3
    assert share_of_dead_units(0.45) > 0.8


@pytest.mark.parametrize("name", ["alie", "ipm", "min_max"])
@pytest.mark.parametrize("honest", [0, 1])
def test_attacks_stay_finite_with_at_most_one_honest_client(name, honest):
    updates = attacked(name, np.arange(9) < honest)
    assert np.isfinite(updates).all()
    if honest and name != "ipm":  # the standard deviation of one update is 0
        np.testing.assert_allclose(updates[3], UPDATES[0], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------- defences


def krum_sums(updates, attackers):
    sums = []
    for i, u in enumerate(updates):
        others = sorted(np.sum((u - v) ** 2) for j, v in enumerate(updates) if j != i)
        sums.append(sum(others[: len(updates) - attackers - 2]))
    return np.array(sums)


def by_numpy(name, updates, attackers):
    """The single update that a defence makes of all; minima are found by SciPy."""
    if name == "median":
        return np.median(updates, axis=0)
    if name == "trimmed_mean":
        cut = np.sort(updates, axis=0)[attackers:-attackers]
        return cut.sum(axis=0) / (len(updates) - 2 * attackers)
    if name == "geometric_median":
        total = lambda v: np.linalg.norm(updates - v, axis=1).sum()  # noqa: E731
        return optimize.minimize(total, updates.mean(axis=0), tol=1e-10).x
    if name == "centred_clip":
        v, limit = np.zeros(updates.shape[1]), np.median(np.linalg.norm(updates, axis=1))
        for _ in range(3):
            gaps = [u - v for u in updates]
            v = v + np.mean([g * min(1, limit / np.linalg.norm(g)) for g in gaps], axis=0)
        return v
    if name == "bulyan":
        return bulyan_by_numpy(updates, attackers)
    if name == "foolsgold":
        return foolsgold_by_numpy(updates)
    return updates[kept_by_numpy(name, updates, attackers)].mean(axis=0)


def kept_by_numpy(name, updates, attackers):
    """The numbers of the updates that a filter keeps."""
    if name == "dnc":
        centred = updates - updates.mean(axis=0)
        direction = np.linalg.svd(centred)[2][0]
        return np.argsort((centred @ direction) ** 2)[: len(updates) - attackers]
    number = {"krum": 1, "multi_krum": len(updates) - attackers}[name]
    return np.argsort(krum_sums(updates, attackers))[:number]


def bulyan_by_numpy(updates, attackers):
    left, chosen = list(updates), []
    while len(chosen) < len(updates) - 2 * attackers:
        nearest = [
            sum(
                sorted(np.sum((u - v) ** 2) for v in left if v is not u)[
                    : max(len(left) - attackers - 2, 1)
                ]
            )
            for u in left
        ]
        chosen.append(left.pop(int(np.argmin(nearest))))
    result = []
    for numbers in np.array(chosen).T:
        middle = np.median(numbers)
        near = sorted(numbers, key=lambda x: abs(x - middle))  # noqa: B023
        result.append(np.mean(near[: len(updates) - 4 * attackers]))
    return np.array(result)


def foolsgold_by_numpy(updates):
    unit = [u / np.linalg.norm(u) for u in updates]
    size = range(len(updates))
    largest = [max(unit[i] @ unit[j] for j in size if j != i) for i in size]
    alike = [
        max(
            unit[i] @ unit[j] * (largest[i] / largest[j] if largest[i] < largest[j] else 1)
            for j in size
            if j != i
        )
        for i in size
    ]
    shares = np.clip(1 - np.array(alike), 0, 1)
    shares = np.minimum(shares / shares.max(), 0.99)
    weights = np.clip(np.log(shares / (1 - shares)) + 0.5, 0, 1)
    return weights @ updates / weights.sum()


@functools.cache
def aggregation(method, size=9, **changes):
    """(updates [M, d]) -> a method's server before and after it aggregates these updates."""
    config = small_config(method, cohort_size=size, client_optimizer="sgd", **changes)
    federation = two_clusters(size)
    experiment = build_experiment(config, federation)
    algorithm = experiment.build(experiment.hparams, 0)
    cohort = Cohort(jnp.arange(size), jnp.ones(size))

    def untrained(server, i):
        message = algorithm.server.download(server, 0, i)
        return algorithm.client.untrained(message, (), ClientData(None))

    @jax.jit
    def aggregate(updates):
        server = algorithm.server.init(KEY, federation.data.graph)
        before = jax.vmap(untrained, (None, 0))(server, cohort.ids)
        flat, back = tree.as_matrix(before)
        uploads = (back(flat.at[:, : updates.shape[1]].add(updates)),)
        if algorithm.defend is not None:
            server, uploads = algorithm.defend(server, (cohort,), (before,), uploads)
        return server, algorithm.server.aggregate(server, (cohort,), uploads, KEY)

    return lambda updates: jax.device_get(aggregate(np.float32(updates)))


def fedavg_update(updates, **changes):
    """The difference [d] that FedAvg's server makes of updates."""
    before, after = aggregation("fedavg", **changes)(updates)
    gaps = jax.tree.map(lambda a, b: (a - b)[None], after, before)
    return np.asarray(tree.as_matrix(gaps)[0][0])


WITH_ATTACKERS = {"trimmed_mean", "bulyan", *FILTERS}  # defences for a number of attackers
MEANS = [(name, 1) for name in [*CENTRES, *FILTERS]] + [
    (name, 2)
    for name in sorted(WITH_ATTACKERS - {"bulyan"})  # it needs 11 clients
]


@pytest.mark.parametrize("name, attackers", MEANS)
def test_robust_means_are_those_of_numpy(name, attackers):
    changes = {"defence__attackers": attackers} if name in WITH_ATTACKERS else {}
    update = fedavg_update(UPDATES, defence__name=name, **changes)
    expected = by_numpy(name, UPDATES, attackers)
    np.testing.assert_allclose(update[:20], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(update[20:], 0, atol=1e-6)


def test_an_update_without_a_finite_norm_does_not_switch_clipping_off():
    updates = np.float32([[1, 0], [0, 1], [np.nan, 0], [2, 0], [0, 200], [np.inf, 1]])
    clipped = DEFENCES["clip"](defence_norm=jnp.float32(1.0))(jnp.asarray(updates))
    expected = [[1, 0], [0, 1], [0, 0], [1.5, 0], [0, 1.5], [0, 0]]
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)


@pytest.mark.parametrize("far", [1e2, 1e6, 1e20])
def test_the_geometric_median_stays_with_the_majority(far):
    """Four of nine updates are equal and far away."""
    updates = np.random.default_rng(0).normal(size=(9, 100)) / 10
    updates[:4] = far * np.eye(100)[0]
    centre = np.asarray(DEFENCES["geometric_median"]()(jnp.float32(updates)))
    assert np.linalg.norm(centre) < 3


def test_updates_are_clipped_to_the_median_norm():
    clip = jax.jit(lambda updates, norm: DEFENCES["clip"](defence_norm=norm)(updates))
    clipped = clip(np.float32(UPDATES), np.float32(1.0))
    norms = np.linalg.norm(UPDATES, axis=1)
    expected = UPDATES * np.minimum(1, np.median(norms) / norms)[:, None]
    np.testing.assert_allclose(clipped, expected, rtol=1e-5)
    unchanged = clip(np.float32(UPDATES), np.float32(1e9))
    np.testing.assert_array_equal(unchanged, np.float32(UPDATES))
    assert np.all(np.asarray(clip(np.zeros((9, 20), np.float32), np.float32(1e9))) == 0)


@pytest.mark.parametrize("outliers", [1, 2, 3])
def test_krum_selects_an_honest_update_where_outliers_are_far_away(outliers):
    updates = UPDATES.copy()
    updates[:outliers] = 1e3 * (1 + np.arange(outliers))[:, None]
    update = fedavg_update(updates, defence__name="krum", defence__attackers=outliers)
    distance = np.abs(UPDATES - update[:20]).max(axis=1)
    assert distance.argmin() >= outliers and distance.min() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_rejected_clients_count_as_untrained_where_clients_have_different_models(name):
    updates = UPDATES.copy()
    updates[:2] = 50.0
    settings = {"server_optimizer": "sgd"}
    defended = aggregation("pfedhn", defence__name=name, defence__attackers=2, **settings)
    kept = kept_by_numpy(name, updates, 2)
    assert kept.min() >= 2
    filtered = np.where(np.isin(np.arange(9), kept)[:, None], updates, 0.0)
    ours, theirs = defended(updates)[1], aggregation("pfedhn", **settings)(filtered)[1]
    for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "method, changes, message",
    [
        (
            "panacea",
            {"defence__name": "median"},
            "defence.name='median' makes one model of all uploads, .* choose from clip, "
            "monotone, krum, multi_krum",
        ),
        (
            "sfl",
            {"defence__name": "geometric_median"},
            "the server of algorithm.name='sfl' needs one for each client",
        ),
        (
            "local",
            {"defence__name": "clip"},
            "has no effect: the clients of algorithm.name='local' upload nothing",
        ),
        (
            "fedproto",
            {"defence__name": "monotone"},
            "algorithm.name='fedproto' send none; choose from clip, krum, multi_krum",
        ),
        (
            "fedavg",
            {"defence__name": "krum"},
            "attackers=1 is too many for krum in a cohort of 4; set --config.cohort_size=5",
        ),
        (
            "fedavg",
            {"defence__name": "trimmed_mean", "defence__attackers": 2},
            "attackers=2 is too many for trimmed_mean in a cohort of 4; .*cohort_size=5",
        ),
        ("fedavg", {"attack__name": "backdoor"}, "attack.name='backdoor' needs images"),
        (
            "fedrod",
            {"tuning__part": "new_head"},
            "tuning.part='new_head' .*'fedrod' predict with more than their model; leave",
        ),
    ],
)
def test_attacks_and_defences_that_do_not_fit_are_refused_in_one_line(method, changes, message):
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        build_experiment(small_config(method, **changes), two_clusters())


def test_counts_of_examples_are_no_part_of_an_update():
    """Their client sends them as they are, or untrained if its update is rejected."""
    untrained = {"count": jnp.zeros((3, 2), jnp.int32), "mean": jnp.ones((3, 2))}
    sent = {"count": jnp.full((3, 2), 4, jnp.int32), "mean": jnp.full((3, 2), 3.0)}
    factors = jnp.array([[1.0], [-1.0], [0.0]])
    (changed,) = with_updates((untrained,), (sent,), lambda own, before, group: own * factors)
    np.testing.assert_array_equal(changed["count"], [[4, 4], [4, 4], [0, 0]])
    np.testing.assert_array_equal(changed["mean"], [[3, 3], [-1, -1], [1, 1]])


def test_simple_tuning_trains_a_newly_drawn_head_on_the_unchanged_body():
    """Of nine clients no two heads are equal, and none is larger than 1 / sqrt(fan_in)."""
    config = small_config("fedavg", tuning__part="new_head")
    experiment = build_experiment(config, two_clusters())
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), experiment.federation.data.train)
    w = experiment.model.init(KEY)
    w["head"] = jax.tree.map(lambda leaf: leaf + 100.0, w["head"])

    @jax.jit
    def tuned(rate):
        client = experiment.build(experiment.hparams | {"tuning_lr": rate}, 0).client
        personalize = jax.vmap(lambda key: client.personalize(w, (), ClientData(own), key))
        return personalize(jax.random.split(KEY, 9)).params

    heads = []
    for rate in (0.0, experiment.hparams["tuning_lr"]):
        after = jax.device_get(tuned(jnp.float32(rate)))
        for leaf, before in zip(*map(jax.tree.leaves, (after["body"], w["body"])), strict=True):
            np.testing.assert_array_equal(leaf, np.broadcast_to(before, leaf.shape))
        heads.append(np.asarray(tree.as_matrix(after["head"])[0]))
    drawn, trained = heads
    assert np.abs(drawn).max() <= 5**-0.5 and len(np.unique(drawn, axis=0)) == 9
    assert np.all(np.abs(trained - drawn).max(axis=1) > 1e-3)


@pytest.mark.parametrize(
    "trained, idle", [([2, 0, 1], True), ([2, 1, 1], False), (None, False)]
)
def test_the_table_of_an_attack_says_if_no_attacker_has_trained(trained, idle):
    """In few rounds with small cohorts, chance may draw none of them."""
    scores = {point: {"mean": 0.5, "per_client": [0.5] * 3} for point in ("G", "L", "P")}
    attack = {"name": "sign_flip", "ids": [1], "benign": None, "success": None}
    table = attack_table(
        {
            "attack": attack | {"benign_by_malicious_neighbours": None},
            "scores": {"final": scores},
            "rounds_trained": trained,
            "metric": "accuracy",
            "defence": "",
            "rejected": None,
        }
    )
    assert table.caption.endswith("; none of them trained in any round") == idle
