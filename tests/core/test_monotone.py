"""The defence `monotone`: against NumPy, in limit cases, and in runs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax import tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change, fl60, tpt48
from graphfl_jax.core import Algorithm, Client, Cohort, Server
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import undirected_matrix
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.runs.session import inputs_of, program_of
from graphfl_jax.settings import LARGEST_FLOAT
from graphfl_jax.wire.attacks import with_attack_order
from graphfl_jax.wire.monotone import (
    BROKEN,
    NEVER,
    Monotone,
    Seen,
    cosines,
    guard,
    lower_median,
    monotone,
    reaches,
    trusted_of,
)
from tests.federations import small_config, two_clusters

KEY = jax.random.key(0)
DEFENCE = Monotone(*map(jnp.float32, (0.0, 0.7, 0.5, 2.0, math.inf)))
SIZE, WIDTH = 5, 3
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)]
RELATED = np.zeros((SIZE, SIZE))
for first, second in EDGES:
    RELATED[first, second] = RELATED[second, first] = 1.0


def keeping(start, *, averages=False, architectures=1):
    """A server with a model of each client, which it replaces by the upload; or with one."""

    def aggregate(server, cohorts, uploads, key):
        if averages:
            return jnp.mean(uploads[0], axis=0)
        for cohort, upload in zip(cohorts, uploads, strict=True):
            server = server.at[cohort.ids].set(upload)
        return server

    server = Server(
        init=lambda key, graph: jnp.asarray(start[0] if averages else start),
        download=lambda server, group, i: server if averages else server[i],
        aggregate=aggregate,
        substitute=None if averages else lambda server, mean: mean(server),
    )
    return Algorithm(server, (Client(None, None),) * architectures, averages=averages)


EVERYONE = (Group(SIZE),)


def playing(start, defence=DEFENCE, *, averages=False):
    """The first state, and (state, ids, updates [M, d]) -> the next, of a defended server."""
    algorithm = guard(keeping(start, averages=averages), defence, EVERYONE, (WIDTH,))
    graph = relations.from_edges(SIZE, EDGES)

    @jax.jit
    def play(state, ids, updates):
        cohorts = (Cohort(ids, jnp.float32(1 + ids)),)  # the last has the most examples
        sent = jax.vmap(lambda i: algorithm.server.download(state, 0, i))(ids)
        state, uploads = algorithm.defend(state, cohorts, (sent,), (sent + updates,))
        return algorithm.server.aggregate(state, cohorts, uploads, KEY)

    return algorithm, jax.jit(algorithm.server.init)(KEY, graph), play


def cosine(a, b):
    norm = math.sqrt(a @ a) * math.sqrt(b @ b)
    return a @ b / norm if norm else 0.0


def mean_with_memory(values):
    """Of a client's values, oldest first: each has 0.7 times the weight of the next."""
    return np.average(values, weights=0.7 ** np.arange(len(values))[::-1])


def reach_of(comparisons):
    """Of a client's (|u_t|, x_t - x_s, u_t - u_s), oldest first."""
    length = mean_with_memory([length for length, _, _ in comparisons])
    square = mean_with_memory([move @ move for _, move, _ in comparisons])
    product = mean_with_memory([-answer @ move for _, move, answer in comparisons])
    return length * square / product if product > 0 else LARGEST_FLOAT


class NumpyServer:
    """The equations of the docstring, client by client."""

    def __init__(self, start, averages, most=math.inf):
        self.models, self.averages = np.float64(start), averages
        self.most, self.compared = most, {}  # R, and (|u_t|, x_t - x_s, u_t - u_s) by client
        self.last, self.s = {}, np.zeros(SIZE)
        self.rejected, self.visits = np.zeros(SIZE), np.zeros(SIZE)

    def model(self, i):
        return self.models[0] if self.averages else self.models[i]

    def reaches(self):
        return {i: reach_of(comparisons) for i, comparisons in self.compared.items()}

    def trusted(self):
        good, far = self.s <= 0, self.reaches()
        if far and self.most < math.inf:
            limit = self.most * sorted(far.values())[(len(far) - 1) // 2]
            good[[i for i, d in far.items() if d > limit]] = False
        return good

    def play(self, ids, updates):
        before, trusted = dict(self.last), self.trusted()
        for i, u in zip(ids, updates, strict=True):
            x = self.model(i).copy()
            voice = np.zeros(WIDTH)
            for j in np.flatnonzero(RELATED[i]):
                if j in before and trusted[j]:
                    voice += before[j][1] / np.linalg.norm(before[j][1])
            if i in before:
                move, answer = x - before[i][0], u - before[i][1]
                m = cosine(answer, move)
                if move.any():
                    length = math.sqrt(u @ u)
                    self.compared.setdefault(i, []).append((length, move, answer))
                self.s[i] = 0.7 * self.s[i] + 0.3 * (m - 0.5 * cosine(u, voice))
            self.last[i] = (x, u)
            self.visits[i] += 1
        good = self.trusted()
        self.rejected[ids] += ~good[ids]
        norms = sorted(np.linalg.norm(u) for _, u in self.last.values())
        limit = 2 * norms[(len(norms) - 1) // 2]
        clipped = [u * min(1, limit / np.linalg.norm(u)) for u in updates]
        if self.averages:
            shares = [(i + 1.0) * good[i] for i in ids]
            instead = np.average(clipped, axis=0, weights=shares) if any(shares) else 0.0 * x
            kept = [u if w else instead for w, u in zip(shares, clipped, strict=True)]
            self.models[0] += np.mean(kept, axis=0)
            return
        for i, u in zip(ids, clipped, strict=True):
            if good[i]:
                self.models[i] += u
        models = self.models.copy()
        for i in np.flatnonzero(~good):
            heard = good & (self.visits > 0)
            sources = np.flatnonzero((RELATED[i] > 0) & heard)
            sources = sources if len(sources) else np.flatnonzero(heard)
            if len(sources):
                self.models[i] = models[sources].mean(axis=0)


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("most", [math.inf, 2.0])
def test_rounds_are_those_of_numpy(averages, most):
    """Client 1 uploads against its gradient for ten rounds, and then becomes honest."""
    rng = np.random.default_rng(4)
    start, minima = rng.normal(size=(2, SIZE, WIDTH)).astype(np.float32)
    defence = DEFENCE._replace(reach=jnp.float32(most))
    algorithm, state, play = playing(start, defence, averages=averages)
    numpy, trusted, near = NumpyServer(start, averages, most), [], []
    for number in range(30):
        ids = np.sort(rng.permutation(SIZE)[:3])
        factors = np.where((ids == 1) & (number < 10), -1.0, 1.0)[:, None]
        gaps = np.array([minima[i] - numpy.model(i) for i in ids])
        noise = rng.normal(size=(3, WIDTH)) * rng.lognormal(sigma=2, size=(3, 1))
        updates = np.float32(0.5 * factors * gaps + 0.02 * noise)
        state = play(state, ids, updates)
        numpy.play(ids, np.float64(updates))
        trusted.append(numpy.trusted())
        near.append((trusted[-1], numpy.s.copy()))
        np.testing.assert_allclose(state.seen[0].distrust, numpy.s, atol=1e-4)
        far = np.array([numpy.reaches().get(i, NEVER) for i in range(SIZE)])
        np.testing.assert_allclose(reaches(state.seen[0].compared), far, rtol=2e-3)
        ours = np.array([algorithm.server.download(state, 0, i) for i in range(SIZE)])
        theirs = np.array([numpy.model(i) for i in range(SIZE)])
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert not trusted[9][1]
    if most == math.inf:
        assert trusted[-1][1] and trusted[9].sum() >= 3
    else:  # some are rejected by their reach alone
        assert sum((good < (s <= 0)).sum() for good, s in near) > 10
    shares = np.where(numpy.visits > 0, numpy.rejected / np.maximum(numpy.visits, 1), -1.0)
    np.testing.assert_allclose(algorithm.server.rejected(state), shares, rtol=1e-6)


def test_the_lower_median_is_of_clients_that_have_been_in_a_cohort():
    for norms, expected in (
        ([3.0, -1.0, 1.0, 2.0], 2.0),
        ([4.0, 1.0, -1.0, 2.0, 3.0], 2.0),
        ([-1.0, 5.0], 5.0),
        ([0.0, -1.0, 0.0, 7.0], 0.0),
    ):
        assert float(lower_median(jnp.array(norms))) == expected


def quadratic(condition):
    """C of the docstring, with this condition number, and its eigenvectors."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    return basis @ np.diag([0.9 / condition, 0.5, 0.9]) @ basis.T, basis


@pytest.mark.parametrize("condition", [1.8, 10.0])
def test_the_reach_of_a_quadratic_is_its_distance_up_to_the_condition(condition):
    """The bounds are reached where the way to the minimum and the move are eigenvectors."""
    matrix, basis = quadratic(condition)
    rng = np.random.default_rng(1)
    away, moves = rng.normal(size=(2, 300, 3))  # x_t - x*, x_t - x_s
    away[:2], moves[:2] = basis.T[[0, 2]], basis.T[[2, 0]]
    rows = [
        (1.0, np.linalg.norm(matrix @ x), move @ move, move @ matrix @ move)
        for x, move in zip(away, moves, strict=True)
    ]
    ratios = np.asarray(reaches(jnp.float32(rows))) / np.linalg.norm(away, axis=1)
    assert ratios.min() >= 1 / condition - 1e-5 and ratios.max() <= condition + 1e-4
    np.testing.assert_allclose(ratios[:2], [1 / condition, condition], rtol=1e-5)


@pytest.mark.parametrize("step", [1.0, 0.1])
def test_attackers_far_away_are_rejected_by_their_reach_and_benign_clients_are_not(step):
    """Client 0 goes to a target at the distance 50; the minima of the others are near 0."""
    rng = np.random.default_rng(1)
    targets = rng.normal(size=(SIZE, WIDTH))
    targets[0] = 50 / math.sqrt(WIDTH)
    start = rng.normal(size=(SIZE, WIDTH)).astype(np.float32)
    matrix, _ = quadratic(4.0)
    for most in (4.0, math.inf):
        defence = DEFENCE._replace(reach=jnp.float32(most))
        _, state, play = playing(start, defence, averages=True)
        for _ in range(12):
            ways = targets - np.asarray(state.server)
            updates = ways @ matrix
            updates[0] = step * ways[0]
            state = play(state, np.arange(SIZE), np.float32(updates))
        rejections = np.asarray(state.seen[0].rejections)
        assert (rejections[1:] == 0).all()
        assert rejections[0] > 5 if most == 4.0 else rejections[0] == 0


def test_a_reach_of_zero_in_a_configuration_is_no_limit():
    """And a client is compared only if its model has moved."""
    assert float(monotone().reach) == 6.0 and math.isinf(monotone(defence_reach=0.0).reach)
    means = [[0.3, 1, 1, product] for product in (1, 1, 1, 1e-3, -1)] + [[0, 0, 0, 0]]
    seen = Seen(*[jnp.zeros(6)] * 6, compared=jnp.float32(means))
    for most, expected in ((4.0, [1, 1, 1, 0, 0, 1]), (math.inf, [1] * 6)):
        good = trusted_of(DEFENCE._replace(reach=jnp.float32(most)), seen)
        np.testing.assert_array_equal(good, np.bool_(expected))
    _, state, play = playing(np.ones((SIZE, WIDTH), np.float32))
    for _ in range(2):
        state = play(state, np.array([2]), np.zeros((1, WIDTH), np.float32))
    np.testing.assert_array_equal(state.seen[0].compared, np.zeros((SIZE, 4)))


@pytest.mark.parametrize("condition", [1.0, 4.0, 13.9])
def test_steps_of_gradient_descent_on_a_quadratic_are_monotone_by_the_bound(condition):
    """The bound of the docstring, reached where x_t - x_s mixes both extreme directions."""
    rng = np.random.default_rng(0)
    values = np.array([1.0, condition, (1 + condition) / 2])
    basis, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    eta, steps = 0.01, 7
    matrix = basis @ np.diag(1 - (1 - eta * values) ** steps) @ basis.T
    eigenvalues = np.linalg.eigvalsh(matrix)
    k = eigenvalues[-1] / eigenvalues[0]
    moves = rng.normal(size=(200, 3))
    worst = math.sqrt(eigenvalues[-1]) * basis[:, 0] + math.sqrt(eigenvalues[0]) * basis[:, 1]
    moves = np.concatenate([moves, worst[None]])
    found = np.asarray(cosines(jnp.float32(-moves @ matrix), jnp.float32(moves)))
    bound = -2 * math.sqrt(k) / (1 + k)
    assert found.max() <= bound + 1e-5
    assert found[-1] == pytest.approx(bound, abs=1e-4)


def monotony_with_noise(curvature, share, gamma, *, along=True):
    """The mean of m_i of 50 clients with u = -curvature x and 2000 parameters.

    Args:
      curvature: negative for clients that upload against their gradient.
      share: of the noise in the squared norm of an update.
      gamma: how far the model moves along the update; along=False: as far in other directions.
      along: whether it moves along the update.
    """
    rng = np.random.default_rng(5)
    models = rng.normal(size=(50, 2000))
    noise = abs(curvature) * math.sqrt(share / (1 - share))
    before = -curvature * models + noise * rng.normal(size=models.shape)
    other = -curvature * models + noise * rng.normal(size=models.shape)
    moves = gamma * (before if along else other)
    after = -curvature * (models + moves) + noise * rng.normal(size=models.shape)
    return float(jnp.mean(cosines(jnp.float32(after - before), jnp.float32(moves))))


@pytest.mark.parametrize("curvature", [0.3, 0.05, -0.15])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.6])
def test_monotony_with_noise_is_that_of_the_docstring(curvature, share):
    gamma = 0.8
    c, r = gamma * curvature, share
    expected = -(c + r) / math.sqrt(c**2 + 2 * c * r + 2 * r)
    found = monotony_with_noise(curvature, share, gamma)
    assert found == pytest.approx(expected, abs=0.02)
    alone = -c / math.sqrt(c**2 + 2 * r)  # the model moves independently of the noise
    assert monotony_with_noise(curvature, share, gamma, along=False) == pytest.approx(
        alone, abs=0.02
    )
    # An attacker has a positive m_i only below the bound, and a benign client never.
    assert abs(found) < 0.01 or (found > 0) == (curvature < 0 and share < -c)


ARCHITECTURES = tuple(Group(len(ids), np.array(ids)) for ids in ([0, 2, 4], [1, 3]))
WITHIN = [(0, 2), (2, 4), (1, 3)]  # edges between clients of one architecture


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("groups", [EVERYONE, ARCHITECTURES], ids=["one", "two"])
def test_neither_architectures_nor_sparse_relations_change_it(groups, sparse):
    """Apart from the median of norms, architectures count for agreement with others alone."""
    endless = DEFENCE._replace(norm=jnp.float32(1e9))
    graph = relations.from_edges(SIZE, WITHIN)
    rng = np.random.default_rng(2)
    start = rng.normal(size=(SIZE, WIDTH)).astype(np.float32)
    algorithms = [
        guard(keeping(start, architectures=len(some)), endless, some, (WIDTH,) * len(some))
        for some in (EVERYONE, groups)
    ]
    states = [jax.jit(own.server.init)(KEY, graph) for own in algorithms]
    if sparse:
        senders, receivers = np.int32(WITHIN).T
        states[1] = states[1]._replace(related=undirected_matrix(senders, receivers, SIZE))

    @functools.partial(jax.jit, static_argnums=0)
    def play(number, state, updates):
        algorithm, own = algorithms[number], (EVERYONE, groups)[number]
        ids = [np.arange(SIZE) if group.ids is None else group.ids for group in own]
        cohorts = tuple(Cohort(jnp.asarray(rows), jnp.ones(len(rows))) for rows in ids)
        sent = tuple(state.server[rows] for rows in ids)
        uploads = tuple(x + updates[rows] for x, rows in zip(sent, ids, strict=True))
        state, uploads = algorithm.defend(state, cohorts, sent, uploads)
        return algorithm.server.aggregate(state, cohorts, uploads, KEY)

    seen = set()
    for _ in range(15):
        factors = np.where(np.arange(SIZE) == 2, -0.5, 0.5)[:, None]
        noise = rng.normal(size=(SIZE, WIDTH))
        updates = np.float32(-factors * np.asarray(states[0].server) + 0.05 * noise)
        states = [play(number, state, updates) for number, state in enumerate(states)]
        np.testing.assert_allclose(states[0].server, states[1].server, rtol=1e-4, atol=1e-5)
        rejected = [
            own.server.rejected(state) for own, state in zip(algorithms, states, strict=True)
        ]
        np.testing.assert_allclose(*rejected, rtol=1e-6)
        seen.add(float(rejected[0][2]))
    assert len(seen) > 3  # client 2 is rejected, and not from the start


def test_clients_of_quadratics_are_never_rejected_whatever_their_neighbours_do():
    """Minima far apart, Hessians of condition 10, and a malicious client 0 among them."""
    rng = np.random.default_rng(1)
    hessians = [np.diag(rng.permutation([1.0, 3.0, 10.0])) for _ in range(SIZE)]
    minima = 5 * rng.normal(size=(SIZE, WIDTH))
    _, state, play = playing(rng.normal(size=(SIZE, WIDTH)).astype(np.float32))
    trained = [np.eye(3) - np.linalg.matrix_power(np.eye(3) - 0.05 * h, 5) for h in hessians]
    for _ in range(25):
        ids = np.sort(rng.permutation(SIZE)[:4])
        models = np.asarray(state.server)
        updates = [-trained[i] @ (models[i] - minima[i]) * (-0.5 if i == 0 else 1) for i in ids]
        state = play(state, ids, np.float32(updates))
        assert (np.asarray(state.seen[0].distrust)[1:] <= 0).all()
    assert float(state.seen[0].distrust[0]) > 0
    assert int(state.seen[0].rejections[0]) > 0


def test_an_update_that_is_not_finite_is_rejected_and_forgotten():
    start = np.ones((SIZE, WIDTH), np.float32)
    _, state, play = playing(start)
    updates = np.full((2, WIDTH), 0.5, np.float32)
    updates[1, 0] = np.nan
    after = play(state, np.array([0, 1]), updates)
    assert bool(tree.all_finite(after))
    np.testing.assert_array_equal(after.server[0], 1.5)
    # Of its neighbours, clients 0 and 2, the second has not been in a cohort.
    np.testing.assert_array_equal(after.server[1], np.full(WIDTH, 1.5))
    assert float(after.seen[0].distrust[1]) == BROKEN


@pytest.mark.parametrize("value", [1e30, np.nan])
def test_a_first_cohort_without_a_finite_norm_changes_nothing(value):
    """The norm of numbers as large as 1e30 is not finite, though the numbers are."""
    start = np.ones((SIZE, WIDTH), np.float32)
    _, state, play = playing(start)
    after = play(state, np.array([0, 1]), np.full((2, WIDTH), value, np.float32))
    assert bool(tree.all_finite(after))
    np.testing.assert_array_equal(after.server, start)
    assert after.seen[0].distrust[:2].tolist() == [BROKEN, BROKEN]
    assert after.seen[0].rejections[:2].tolist() == [1, 1]


def test_without_a_trusted_client_nothing_is_replaced():
    start = np.arange(SIZE * WIDTH, dtype=np.float32).reshape(SIZE, WIDTH)
    _, state, play = playing(start)
    (seen,) = state.seen
    state = state._replace(seen=(seen._replace(distrust=jnp.ones(SIZE)),))
    after = play(state, np.arange(SIZE), np.ones((SIZE, WIDTH), np.float32))
    np.testing.assert_array_equal(after.server, start)


@pytest.mark.parametrize("threshold", [-0.3, 0.0, 0.4])
def test_a_client_is_trusted_until_its_first_comparison(threshold):
    """The first update is clipped alone. The second is the same on a moved model, so m = 0."""
    defence = DEFENCE._replace(threshold=jnp.float32(threshold), agreement=jnp.float32(0))
    start = np.zeros((SIZE, WIDTH), np.float32)
    _, state, play = playing(start, defence)
    updates = np.ones((1, WIDTH), np.float32)
    first = play(state, np.array([2]), updates)
    np.testing.assert_array_equal(first.server[2], 1.0)
    np.testing.assert_allclose(first.seen[0].distrust, np.full(SIZE, threshold), rtol=1e-6)
    second = play(first, np.array([2]), updates)
    assert float(second.seen[0].distrust[2]) == pytest.approx(0.7 * threshold)
    assert int(second.seen[0].rejections[2]) == int(threshold < 0)
    attacked = play(first, np.array([2]), 2 * updates)  # m = 1
    assert int(attacked.seen[0].rejections[2]) == 1


# ----------------------------------------------------------------------------------- programs

TRUSTING = {  # nothing is clipped, and everyone is trusted
    "hparams__defence_threshold": 1.5,
    "hparams__defence_norm": 1e9,
    "hparams__defence_reach": 0.0,
}


@functools.cache
def played(method, defence="", **changes):
    """The server's own state after four rounds."""
    config = small_config(method, defence__name=defence, **changes)
    experiment = build_experiment(config, two_clusters())
    program, inputs = program_of(experiment, config), inputs_of(experiment, 0)
    state, _ = program.advance(program.start(*inputs), *inputs, jnp.int32(4))
    return state.server.server if defence else state.server


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        *[pytest.param(method, marks=pytest.mark.release) for method in ("panacea", "sfl")],
    ],
)
def test_if_everyone_is_trusted_and_nothing_is_clipped_it_is_no_defence(method):
    defended, plain = played(method, "monotone", **TRUSTING), played(method)
    for a, b in zip(jax.tree.leaves(defended), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(a, b)


# One method of each kind of server and of upload, and one that is refused.
KINDS = ("panacea", "fedavg", "sfl", "scaffold", "fedproto")


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.slow if name in KINDS else pytest.mark.release)
        for name in (algorithm.replace("_", "-") for algorithm in ALGORITHMS)
    ],
)
def test_every_method_whose_clients_send_models_can_have_it(method):
    """The state keeps its shape; methods whose clients send something else are refused."""
    config = small_config(
        *(method,), defence__name="monotone", attack__name="sign_flip", cohort_size=4
    )
    federation = with_attack_order(two_clusters(), seed=0)
    if method in ("local", "fedproto", "feddistill", "fedgh"):
        with pytest.raises(ValueError, match="defence.name='monotone' "):
            build_experiment(config, federation)
        return
    experiment = build_experiment(config, federation)
    program = Program(experiment.build, groups=(Group(4),), poison=experiment.poison).compiled()
    hparams = {name: jnp.float32(value) for name, value in experiment.hparams.items()}
    before = jax.eval_shape(program.start, KEY, hparams, federation.data)
    given = (before, KEY, hparams, federation.data, jnp.int32(1))
    assert jax.eval_shape(program.advance, *given)[0] == before


# --------------------------------------------------------------------------------------- runs


@functools.cache
def outcome(defence, attack="", ratio=0.0, data=tpt48, **changes):
    """Results of 150 rounds of Panacea on simulated weather stations, or on other data."""
    changes |= {"rounds": 150, "eval_every": 150, "seed": 0, "defence.name": defence}
    if data is tpt48:
        changes["data.source"] = "simulated"
    if attack:
        changes |= {"attack.name": attack, "hparams.attack_ratio": ratio}
    return graphfl_jax.run(change(data.get_config("panacea"), changes)).results


@pytest.mark.release
@pytest.mark.parametrize("data", [tpt48, fl60], ids=["tpt48", "fl60"])
def test_without_attackers_it_costs_two_percent_at_most(data):
    plain, defended = (
        outcome(name, data=data)["scores"]["final"]["G"]["mean"] for name in ("", "monotone")
    )
    assert defended <= 1.02 * plain if data is tpt48 else defended >= 0.98 * plain


@pytest.mark.release
@pytest.mark.parametrize("attack", ["poisoning", "sign_flip"])
def test_it_rejects_attackers_and_keeps_honest_clients(attack):
    clean = outcome("monotone")["scores"]["final"]["G"]["mean"]
    attacked = outcome("monotone", attack, 0.3)
    assert not attacked["diverged"]
    assert attacked["attack"]["benign"]["G"]["mean"] <= 1.1 * clean
    rejected = attacked["rejected"]
    assert rejected["honest"] < 0.1 < 0.5 < rejected["malicious"]


@pytest.mark.release
@pytest.mark.parametrize(
    "attack, worse", [("own_target", 1.2), ("shared_target", 1.5), ("masked_poisoning", 1.5)]
)
def test_attackers_who_know_it_are_trusted_without_a_limit_on_reaches(attack, worse):
    """The attacks do what they are for: uploads are not rejected, and models get worse.

    Each attacker of own_target pulls its own model alone, so it achieves less than the others.
    """
    endless = {"hparams.defence_reach": 0.0}
    attacked = outcome("monotone", attack, 0.3, **endless)
    assert attacked["rejected"]["malicious"] < 0.3
    before, after = (
        np.array(own["scores"]["final"]["G"]["per_client"])[attacked["attack"]["ids"]]
        for own in (outcome("monotone", **endless), attacked)
    )
    assert after.mean() > worse * before.mean()


@pytest.mark.release
@pytest.mark.parametrize("attack", ["own_target", "shared_target"])
def test_attackers_with_far_targets_are_rejected_by_their_reach(attack):
    clean = outcome("monotone")["scores"]["final"]["G"]["mean"]
    attacked = outcome("monotone", attack, 0.3)
    assert attacked["attack"]["benign"]["G"]["mean"] <= 1.1 * clean
    assert attacked["rejected"]["honest"] < 0.1 < 0.5 < attacked["rejected"]["malicious"]
