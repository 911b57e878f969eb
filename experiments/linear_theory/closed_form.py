"""Panacea and pFedHN where all is linear: what attacked clients cost.

Lan et al., Panacea (IEEE TDSC 2025), section III. Client i's model is theta_i = W V g_i with
generator W [d, k], codes V [k, n], and g_i column i of G = G~^L, which averages L times over a
client and its neighbours; pFedHN is G = I. Clients want Theta* = W T, and codes start at V0.
The entries of W and V0 are independent standard normals; W, which is unique only up to a k x k
factor, is known. The risk is E sum_i ||theta_i - theta*_i||^2 / n. Attacked clients, the first
m, give no gradient. In the paper they give none in expectation, and what is left of it can only
add to the risk, since codes are linear in it.

**Where training ends.** Let B be the identity without its first m ones, and ^+ the
pseudo-inverse. Gradient descent on the benign clients' 1/2 ||(W V G - Theta*) B||^2 never
leaves V0 plus the row space of (G B)', and ends at

    V^ = V0 + (T - V0 G) B (G B)^+

**Risk.** What clients want is told by a constant C [n, n]: T = U C, the entries of U [k, n]
being independent standard normals. With the projection H = G B (G B)^+,

    V^ G - T = V0 (I - H) G + U (C B (G B)^+ G - C)

The two terms are uncorrelated, and E ||W U X||^2 = d k ||X||^2 for a constant X. The columns of
(I - H) G are zero for benign clients and M = (I - H) G_{1:m} for the others, so that

    risk = d k / n (r + ||C B (G B)^+ G - C||^2),    r = ||M||^2

With G = I this is pFedHN's, d k / n sum_{i<=m} (1 + ||c_i||^2). Of three C follows:

    repaired: T = V* G with V* = U, so C = G, and C B (G B)^+ G - C = -(I - H) G
        panacea  2 d k r / n
        pfedhn   d k / n sum_{i<=m} (1 + ||g_i||^2)
    consistent: T = T G~ = u c', so C = e_1 c' with c' G = c', and again -C (I - H) G
        panacea  d k / n (r + ||c' M||^2)
        pfedhn   d k / n sum_{i<=m} (1 + c_i^2)
    unrelated: T = V* = U, so C = I; with Q = G_{1:m} and P the other columns,
        panacea  d k / n (r + ||P^+ Q||^2 + n - rank P)
        pfedhn   2 d k m / n

The theorems print 2 d k m / n for pFedHN (III.2) and 2 d k r / n for Panacea (III.3) always.

**Normalisation.** G~ is printed with entries 1 / (|N(i)| + 1) where i hears j: rows of sum one.
Codes are columns, and the proofs need columns of sum one, the transpose. These have
||g_i||^2 <= 1, which gives lemma III.4, r <= ||Q||^2 <= m, and c = 1 is consistent: one model
for all. With rows of sum one c is the stationary law of a walk along the relations, on a
connected undirected graph |N(i)| + 1 up to a factor.
"""

import itertools

import numpy as np

RANK = 1e-10  # singular values below this share of the largest count as zero
NORMALISATIONS = ("row", "column")
REGIMES = ("repaired", "consistent", "unrelated")
METHODS = ("pfedhn", "panacea")


def _ring(n, rng, density):
    return np.isin(np.subtract.outer(np.arange(n), np.arange(n)) % n, (1, n - 1))


def _random(n, rng, density):
    above = np.triu(rng.random((n, n)) < density, 1)
    return above | above.T


def _star(n, rng, density):
    return np.logical_xor.outer(np.arange(n) == 0, np.arange(n) == 0)


# Who hears whom [n, n], receivers as rows. Client 0 is the hub of the star.
GRAPHS = {
    "empty": lambda n, rng, density: np.zeros((n, n), bool),
    "clique": lambda n, rng, density: ~np.eye(n, dtype=bool),
    "ring": _ring,
    "random": _random,  # joins each pair with probability `density`
    "star": _star,
}


def heard(graph) -> np.ndarray:
    """Who hears whom in a client graph of `graphfl_jax.data.relations`: [n, n] bool."""
    n = graph.nodes.shape[0]
    hears = np.zeros((n, n), bool)
    hears[graph.receivers, graph.senders] = True
    return hears


def averaging(hears, normalisation: str) -> np.ndarray:
    """G~ of one graph or of a stack [..., n, n], with rows or with columns of sum one."""
    n = hears.shape[-1]
    rows = np.asarray(hears, float) + np.eye(n)
    rows = rows / rows.sum(axis=-1, keepdims=True)
    return rows if normalisation == "row" else np.swapaxes(rows, -1, -2)


def consistent(step) -> np.ndarray:
    """The c [n] with c' G~ = c' to which averaging brings c = 1; its mean is one."""
    c = np.ones(len(step))
    while not np.allclose(c @ step, c, rtol=0, atol=1e-11):
        # Only rows of sum one get here. Rounding would grow with the power of G~.
        c, step = c @ step, step @ step
        c, step = c / c.mean(), step / step.sum(axis=1, keepdims=True)
    return c


def wishes(step, layers: int) -> np.ndarray:
    """C of every one of `REGIMES`: [3, n, n]."""
    n = len(step)
    rank_one = np.zeros((n, n))
    rank_one[0] = consistent(step)
    return np.stack([np.linalg.matrix_power(step, layers), rank_one, np.eye(n)])


def residue(graph, attacked: int) -> np.ndarray:
    """(I - H) G, which is M in the attacked columns and zero in the others: [..., n, n]."""
    seen = _seen(graph, attacked)
    return graph - seen @ _inverse(seen) @ graph


def risk(graph, wish, attacked: int, *, params: int, code: int) -> float:
    """The risk of codes trained through `graph`, G, of clients who want C = `wish`."""
    back = _inverse(_seen(graph, attacked)) @ graph
    bias = _seen(wish, attacked) @ back - wish
    r = np.sum(residue(graph, attacked) ** 2)
    return float(params * code / len(graph) * (r + np.sum(bias**2)))


def printed(graph, attacked: int, *, params: int, code: int) -> dict[str, float]:
    """The risks that theorems III.2 and III.3 state."""
    r = np.sum(residue(graph, attacked) ** 2)
    scale = 2 * params * code / len(graph)
    return {"pfedhn": scale * attacked, "panacea": float(scale * r)}


def conditions(step, layers: int, attacked: int) -> dict:
    """What the theorems take for granted of G~, and what is so."""
    graph = np.linalg.matrix_power(step, layers)
    size = np.sort(np.abs(np.linalg.eigvals(step)))[::-1]
    return {
        "clients": len(step),
        "attacked": attacked,
        "rank": int(np.linalg.matrix_rank(step, rtol=RANK)),  # III.1 wants all clients
        "gap": float(max(1 - size[1], 0.0)),  # spectral: codes V = V G~ are unique where > 0
        "column_sums": [float(end(step.sum(axis=0))) for end in (np.min, np.max)],  # III.2: 1
        "largest_column": float(np.sum(graph**2, axis=0).max()),  # ||g_i||^2; III.3: at most 1
        "r": float(np.sum(residue(graph, attacked) ** 2)),  # III.4: at most m
    }


def extremes(clients: int, *, directed: bool) -> dict:
    """The worst that lemma III.4 meets among all graphs of so many clients, for every m < n.

    Also, for columns of sum one, the largest share of pFedHN's risk that Panacea's is where
    all clients want one model, c = 1.
    """
    pairs = [(i, j) for i, j in itertools.permutations(range(clients), 2) if directed or i < j]
    receivers, senders = np.array(pairs).T
    bits = (np.arange(2 ** len(pairs))[:, None] >> np.arange(len(pairs))) & 1 == 1
    hears = np.zeros((len(bits), clients, clients), bool)
    hears[:, receivers, senders] = bits
    if not directed:
        hears[:, senders, receivers] |= bits
    counts = range(1, clients)  # of attacked clients

    def ratios(normalisation, m):
        missed = residue(averaging(hears, normalisation), m)
        r = np.sum(missed**2, axis=(1, 2))
        return r / m, (r + np.sum(missed.sum(axis=1) ** 2, axis=1)) / (2 * m)

    rows, columns = (
        np.array([ratios(normalisation, m) for m in counts]) for normalisation in NORMALISATIONS
    )  # [m, 2, graphs]
    m, worst = np.unravel_index(np.argmax(rows[:, 0]), rows[:, 0].shape)
    return {
        "graphs": len(hears),
        "clients": clients,
        "directed": directed,
        "r_per_attacked": {
            "row": rows[:, 0].max().item(),
            "column": columns[:, 0].max().item(),
        },
        "attacked": counts[m],  # where it is largest, rows having sum one
        "hears": np.argwhere(hears[worst]).tolist(),  # there, pairs of receiver and sender
        "panacea_per_pfedhn": columns[:, 1].max().item(),
    }


def _seen(matrix, attacked):
    """The columns of benign clients, and zeros for those of the others."""
    seen = np.array(matrix, float)
    seen[..., :attacked] = 0.0
    return seen


def _inverse(matrix):
    return np.linalg.pinv(matrix, rtol=RANK)
