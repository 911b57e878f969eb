"""Attacks and defences against NumPy, and who is malicious."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import graphfl_jax
from graphfl_jax import tree
from graphfl_jax.build import build_experiment
from graphfl_jax.core import Cohort, Examples
from graphfl_jax.data import from_arrays
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.robustness.attacks import (
    ATTACKS,
    UPLOAD_ATTACKS,
    backdoor,
    label_flip,
    label_flip_wrong,
    malicious,
    trigger,
    with_ranks,
)
from graphfl_jax.robustness.defences import CENTRES, DEFENCES, FILTERS
from graphfl_jax.runs.batch import Trial, run_trials
from tests.federations import small_config, two_clusters

KEY = jax.random.key(7)
UPDATES = np.random.default_rng(1).normal(size=(9, 20)) + 0.3  # [M, d]
HONEST = np.array([1, 0, 1, 1, 1, 0, 1, 1, 1], bool)


# ------------------------------------------------------------------------------------- data


def plain(size, count, targets=3):
    """One client's examples whose x tells where they stood."""
    y = np.arange(size) % targets
    return Examples(jnp.arange(float(size)), jnp.asarray(y, jnp.int32), jnp.int32(count))


def test_labels_flip_to_any_class_alike_and_wrong_ones_to_the_others():
    """3000 draws: a share of 1/3 lies within 0.04, four errors."""
    examples = plain(3000, 3000)
    flips = {"any": label_flip, "wrong": label_flip_wrong}
    flipped = {
        name: np.asarray(flip(train=examples, classes=3).poison(examples, KEY).y)
        for name, flip in flips.items()
    }
    for y in flipped.values():
        assert set(y) == {0, 1, 2}
        np.testing.assert_allclose(np.bincount(y) / 3000, 1 / 3, atol=0.04)
    y = np.asarray(examples.y)
    assert abs(np.mean(flipped["any"] == y) - 1 / 3) < 0.04
    assert not np.any(flipped["wrong"] == y)
    np.testing.assert_allclose(np.mean((flipped["wrong"] - y) % 3 == 1), 1 / 2, atol=0.04)


def test_targets_of_a_regression_change_places_among_the_real():
    examples = plain(50, 40)._replace(y=jnp.arange(100.0).reshape(50, 2))
    poisoned = label_flip(train=examples, classes=0).poison(examples, KEY)
    y = np.asarray(poisoned.y)
    np.testing.assert_array_equal(y[y[:40, 0].argsort()], np.asarray(examples.y)[:40])
    assert not np.array_equal(y[:40], np.asarray(examples.y)[:40])
    np.testing.assert_array_equal(poisoned.x, examples.x)


def pictures(clients=4, examples=20):
    rng = np.random.default_rng(0)
    shape = (clients * examples, 6, 6, 3)
    labels = rng.integers(0, 3, len(np.zeros(shape[0])))
    labels[:3] = 0, 1, 2
    return from_arrays(
        rng.integers(0, 256, shape).astype(np.uint8),
        labels,
        np.repeat(range(clients), examples),
        edges=[(0, 1), (1, 2), (2, 3)],
    )


def test_a_backdoor_blends_the_trigger_into_a_share_and_asks_for_the_target():
    train = pictures().data.train
    settings = {"classes": 3, "target": 1, "trigger_size": 4}
    floats = {"attack_alpha": jnp.float32(0.2), "attack_share": jnp.float32(0.5)}
    attack = backdoor(train=train, **settings, **floats)
    own = Examples(*(jnp.asarray(leaf[0]) for leaf in train))._replace(count=jnp.int32(11))
    poisoned = attack.poison(own, KEY)
    x, y = np.asarray(own.x, np.float64), np.asarray(own.y)
    drawing, opaque = trigger((6, 6, 3), 4)
    assert opaque[2:, 2:].all() and opaque.sum() == 4 * 4 * 3
    assert drawing.min() >= 0 and drawing.max() <= 255 and np.ptp(drawing[2:, 2:]) > 200
    blended = np.round(x * (1 - 0.2 * opaque) + 0.2 * opaque * drawing)
    changed = (np.asarray(poisoned.x) != own.x).any(axis=(1, 2, 3))
    assert changed[:11].sum() == 6 and not changed[11:].any()  # round(5.5) is even
    np.testing.assert_allclose(poisoned.x[changed], blended[changed], atol=1)
    np.testing.assert_array_equal(poisoned.y, np.where(changed, 1, y))

    goal = attack.goal(own)
    others = np.flatnonzero((y != 1) & (np.arange(len(y)) < 11))
    assert int(goal.count) == len(others) and np.all(np.asarray(goal.y) == 1)
    np.testing.assert_allclose(goal.x[: len(others)], blended[others], atol=1)


@pytest.mark.parametrize("name", ["label_flip", "label_flip_wrong"])
def test_only_what_malicious_clients_train_on_is_changed(name):
    config = small_config(attack__name=name, algorithm__name="fedavg")
    config.hparams.attack_ratio = 0.4
    federation = with_ranks(two_clusters(padding=2), clients=(), seed=3)
    algorithm = build_experiment(config, federation).build(dict(config.hparams), 0)
    before, after = federation.data, algorithm.poison_data(federation.data, KEY)
    bad = federation.data.rank < 3  # round(0.4 * 7)
    differs = (np.asarray(after.train.y) != before.train.y).any(axis=1)
    assert not differs[~bad].any() and differs[bad].all()
    assert after.evals == before.evals
    for leaf, old in zip((after.train.x, after.train.count), before.train[::2], strict=True):
        np.testing.assert_array_equal(leaf, old)


# --------------------------------------------------------------------------------------- who


def test_attackers_are_nested_by_ratio_and_drawn_by_the_seed():
    ranks = [
        with_ranks(two_clusters(40), clients=(), seed=seed).data.rank for seed in range(30)
    ]
    again = with_ranks(two_clusters(40), clients=(), seed=5).data.rank
    np.testing.assert_array_equal(again, ranks[5])
    sets = [
        np.asarray(malicious(ranks[0], jnp.float32(ratio), 40))
        for ratio in (0, 0.1, 0.3, 0.5, 1)
    ]
    assert [bad.sum() for bad in sets] == [0, 4, 12, 20, 40]
    for fewer, more in zip(sets, sets[1:], strict=False):
        assert not np.any(fewer & ~more)
    often = np.mean([malicious(rank, jnp.float32(0.5), 40) for rank in ranks], axis=0)
    assert often.min() > 0.1 and often.max() < 0.9  # 30 draws of a half: four errors


def test_newcomers_never_attack_and_names_say_who_does():
    whole = hold_out(two_clusters(), fraction=0.3, graph="inductive", seed=0)
    drawn = with_ranks(whole, clients=(), seed=0)
    everyone = malicious(drawn.everyone.rank, jnp.float32(1.0), 5)
    assert everyone.tolist() == [True] * 5 + [False] * 2
    named = with_ranks(whole, clients=(whole.clients[3], 0), seed=0)
    for ratio in (0.0, 1e-6):
        bad = malicious(named.everyone.rank, jnp.float32(ratio), 5)
        assert np.flatnonzero(bad).tolist() == [0, 3]
    with pytest.raises(ValueError, match=r"attack.clients has 'client 9'.*0 to 4"):
        with_ranks(whole, clients=("client 9",), seed=0)
    with pytest.raises(ValueError, match="who does not train"):
        with_ranks(whole, clients=(whole.clients[-1],), seed=0)


def test_results_name_those_whose_data_were_changed():
    """And tell the scores of the others, and of triggered images."""
    with jax.numpy_dtype_promotion("standard"):  # a perceptron casts bytes without a word
        check_results()


def check_results():
    config = small_config(
        attack__name="backdoor",
        hparams__attack_ratio=0.5,
        algorithm__name="fedavg",
        rounds=1,
        cohort_size=2,
        seed=1,
    )
    federation = pictures()
    ran = graphfl_jax.run(config, federation)
    told = ran.results["attack"]
    ranked = with_ranks(federation, clients=(), seed=1)
    hparams = {name: jnp.float32(value) for name, value in ran.results["hparams"].items()}
    algorithm = build_experiment(config, ranked).build(hparams, 0)
    after = algorithm.poison_data(ranked.data, KEY)
    changed = (np.asarray(after.train.y) != ranked.data.train.y).any(axis=1)
    ids = np.flatnonzero(changed).tolist()
    assert len(ids) == 2 and told["ids"] == ids
    assert (told["name"], told["ratio"]) == ("backdoor", 0.5)
    assert told["malicious"] == [federation.clients[i] for i in ids]
    scores = ran.rows[-1]["scores"]
    for point in ("G", "L", "P"):
        own = ran.results["scores"]["final"][point]["per_client"]
        assert told["benign"][point]["per_client"] == [own[i] for i in range(4) if i not in ids]
        np.testing.assert_allclose(
            told["success"][point], np.mean(scores["triggered"][point][~changed])
        )
    w, triggered = ran.state.server, after.evals["triggered"]
    predicted = jnp.argmax(algorithm.predict(w, triggered.x[1]), axis=-1)
    taken = np.asarray(predicted == 1)[: int(triggered.count[1])]
    np.testing.assert_allclose(scores["triggered"]["G"][1], taken.mean(), rtol=1e-6)


def test_ratios_of_one_program_are_the_runs_of_each():
    config = small_config(attack__name="label_flip", algorithm__name="fedavg", rounds=2, seed=2)
    federation = two_clusters()
    trials = [Trial({"attack_ratio": ratio}, 2) for ratio in (0.0, 0.3)]
    federations = {2: with_ranks(federation, clients=(), seed=2)}
    none, some = (one for _, one in run_trials(config, federations, trials, at_once=2))
    assert none.results["attack"]["ids"] == []
    config.hparams.attack_ratio = 0.3
    alone = graphfl_jax.run(config, federation).results
    assert len(alone["attack"]["ids"]) == 2
    run_synchronized = some.results
    assert run_synchronized["attack"]["ids"] == alone["attack"]["ids"]
    for a, b in (
        (run_synchronized["scores"]["final"], alone["scores"]["final"]),
        (run_synchronized["attack"]["benign"], alone["attack"]["benign"]),
    ):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), a, b)


# ----------------------------------------------------------------------------------- uploads


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


EXPECTED = {
    "poisoning": lambda: -0.5 * UPDATES,
    "sign_flip": lambda: -UPDATES,
    "alie": lambda: np.broadcast_to(statistics()[0] - 1.5 * statistics()[1], UPDATES.shape),
    "ipm": lambda: np.broadcast_to(-0.5 * statistics()[0], UPDATES.shape),
    "min_max": min_max,
}
FLOATS = {
    "poisoning": {"attack_lambda": 0.5},
    "noise": {"attack_sigma": 3.0},
    "alie": {"attack_z": 1.5},
    "ipm": {"attack_epsilon": 0.5},
}


def changed(name, honest=HONEST, updates=UPDATES):
    floats = {key: jnp.float32(value) for key, value in FLOATS.get(name, {}).items()}
    return ATTACKS[name](**floats)(jnp.float32(updates), jnp.asarray(honest), KEY)


@pytest.mark.parametrize("name", EXPECTED)
def test_uploads_are_attacked_as_numpy_says(name):
    assert {*EXPECTED, "noise"} == {*UPLOAD_ATTACKS}
    np.testing.assert_allclose(changed(name), EXPECTED[name](), rtol=1e-4, atol=1e-4)


def test_noise_is_as_large_as_it_says():
    """100,000 draws: a standard deviation within 1 %, four errors."""
    updates = np.random.default_rng(0).normal(size=(2, 50_000)) * np.array([[1.0], [0.01]])
    added = np.asarray(changed("noise", np.ones(2, bool), updates)) - updates
    np.testing.assert_allclose(added.std(axis=1) / updates.std(axis=1), 3.0, rtol=0.02)


@pytest.mark.parametrize("name", ["alie", "ipm", "min_max"])
@pytest.mark.parametrize("honest", [0, 1])
def test_colluders_with_hardly_anybody_to_hide_among_stay_finite(name, honest):
    told = np.asarray(changed(name, np.arange(9) < honest))
    assert np.isfinite(told).all()
    if honest and name != "ipm":  # a deviation of one is 0
        np.testing.assert_allclose(told[3], UPDATES[0], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------- defences


def krum_sums(updates, attackers):
    sums = []
    for i, u in enumerate(updates):
        others = sorted(np.sum((u - v) ** 2) for j, v in enumerate(updates) if j != i)
        sums.append(sum(others[: len(updates) - attackers - 2]))
    return np.array(sums)


def by_numpy(name, updates, attackers):
    """The one update that a defence makes of all; by SciPy where it is a minimum."""
    if name == "median":
        return np.median(updates, axis=0)
    if name == "trimmed_mean":
        cut = np.sort(updates, axis=0)[attackers:-attackers]
        return cut.sum(axis=0) / (len(updates) - 2 * attackers)
    if name == "geometric_median":
        total = lambda v: np.linalg.norm(updates - v, axis=1).sum()  # noqa: E731
        return optimize.minimize(total, updates.mean(axis=0), tol=1e-10).x
    kept = {"krum": 1, "multi_krum": len(updates) - attackers}[name]
    return updates[np.argsort(krum_sums(updates, attackers))[:kept]].mean(axis=0)


def difference(after, before):
    """Between two models, as [d]."""
    apart = jax.tree.map(lambda a, b: (a - b)[None], after, before)
    return np.asarray(tree.as_matrix(apart)[0][0])


def learned(updates, algorithm="fedavg", **changes):
    """A method's server, and what it makes of a cohort's updates [M, d]."""
    size = len(updates)
    config = small_config(algorithm__name=algorithm, cohort_size=size, **changes)
    config.client_optimizer = config.server_optimizer = "sgd"
    federation = two_clusters(size)
    experiment = build_experiment(config, federation)
    method = experiment.build(experiment.hparams, 0)
    server = jax.jit(method.init)(KEY, federation.data.graph)
    before = jax.vmap(lambda i: method.untrained(method.download(server, i)))(jnp.arange(size))
    flat, back = tree.as_matrix(before)
    flat = flat.at[:, : updates.shape[1]].add(jnp.float32(updates))
    cohort = Cohort(jnp.arange(size), jnp.ones(size))
    return server, jax.jit(method.aggregate)(server, cohort, back(flat), KEY)


@pytest.mark.parametrize("name", [*CENTRES, *FILTERS])
@pytest.mark.parametrize("attackers", [1, 2])
def test_robust_means_are_those_of_numpy(name, attackers):
    before, after = learned(UPDATES, defence__name=name, defence__attackers=attackers)
    update = difference(after, before)
    expected = by_numpy(name, UPDATES, attackers)
    np.testing.assert_allclose(update[:20], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(update[20:], 0, atol=1e-6)


def test_clipped_updates_are_no_longer_than_the_median():
    floats = {"defence_norm": jnp.float32(1.0)}
    clipped = np.asarray(DEFENCES["clip"](**floats)(jnp.float32(UPDATES)))
    norms = np.linalg.norm(UPDATES, axis=1)
    most = np.median(norms)
    expected = UPDATES * np.minimum(1, most / norms)[:, None]
    np.testing.assert_allclose(clipped, expected, rtol=1e-5)
    wide = DEFENCES["clip"](defence_norm=jnp.float32(1e9))
    np.testing.assert_array_equal(wide(jnp.float32(UPDATES)), np.float32(UPDATES))
    assert np.all(np.asarray(wide(jnp.zeros((3, 2)))) == 0)


@pytest.mark.parametrize("outliers", [1, 2, 3])
def test_krum_picks_an_honest_update_when_outliers_are_far(outliers):
    updates = UPDATES.copy()
    updates[:outliers] = 1e3 * (1 + np.arange(outliers))[:, None]
    before, after = learned(updates, defence__name="krum", defence__attackers=outliers)
    update = difference(after, before)
    distance = np.abs(UPDATES - update[:20]).max(axis=1)
    assert distance.argmin() >= outliers and distance.min() < 1e-5


@pytest.mark.parametrize("name", FILTERS)
def test_a_server_that_keeps_clients_apart_hears_the_rejected_as_untrained(name):
    updates = UPDATES.copy()
    updates[:2] = 50.0
    ours = learned(updates, "pfedhn", defence__name=name, defence__attackers=2)[1]
    kept = np.argsort(krum_sums(updates, 2))[: {"krum": 1, "multi_krum": 7}[name]]
    assert kept.min() >= 2
    filtered = np.where(np.isin(np.arange(9), kept)[:, None], updates, 0.0)
    for a, b in zip(*map(jax.tree.leaves, (ours, learned(filtered, "pfedhn")[1])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "algorithm, changes, says",
    [
        ("panacea", {"defence__name": "median"}, "'median' makes one model.*clip, krum, multi"),
        ("sfl", {"defence__name": "geometric_median"}, "keeps apart"),
        ("local", {"defence__name": "clip"}, "means nothing where clients upload nothing"),
        ("fedavg", {"defence__name": "krum"}, "attackers=1 in a cohort of 4 .*cohort_size=5"),
        (
            "fedavg",
            {"defence__name": "trimmed_mean", "defence__attackers": 2},
            "attackers=2 in a cohort of 4 .*cohort_size=5",
        ),
        ("fedavg", {"attack__name": "backdoor"}, "needs images"),
    ],
)
def test_what_means_nothing_is_refused(algorithm, changes, says):
    config = small_config(algorithm__name=algorithm, **changes)
    with pytest.raises(ValueError, match=says):
        build_experiment(config, two_clusters())


def test_simple_tuning_starts_a_head_afresh_on_the_body_as_it_was():
    """Of nine clients no two heads are alike, and none is larger than 1 / sqrt(fan_in)."""
    config = small_config(algorithm__name="fedavg", tuning__part="new_head")
    experiment = build_experiment(config, two_clusters())
    resting = experiment.build(experiment.hparams | {"tuning_lr": 0.0}, 0)
    tuned = experiment.build(experiment.hparams, 0)
    w = resting.init(KEY, experiment.federation.data.graph)
    w["head"] = jax.tree.map(lambda leaf: leaf + 100.0, w["head"])
    own = Examples(*(jnp.asarray(leaf[0]) for leaf in experiment.federation.data.train))
    keys = jax.random.split(KEY, 9)
    heads = []
    for algorithm in (resting, tuned):
        after = jax.vmap(lambda key: algorithm.personalize(w, (), own, key))(keys)  # noqa: B023
        for leaf, before in zip(*map(jax.tree.leaves, (after["body"], w["body"])), strict=True):
            np.testing.assert_array_equal(leaf, np.broadcast_to(before, leaf.shape))
        heads.append(np.asarray(tree.as_matrix(after["head"])[0]))
    drawn, trained = heads
    assert np.abs(drawn).max() <= 5**-0.5 and len(np.unique(drawn, axis=0)) == 9
    assert np.all(np.abs(trained - drawn).max(axis=1) > 1e-3)
