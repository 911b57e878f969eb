"""Closed-form risks of pFedHN and Panacea under attack, where all models are linear.

Lan et al., Panacea (IEEE TDSC 2025), section III. The model of client i is theta_i = W V g_i
with generator W [d, k], embeddings V [k, n], and g_i column i of G = G~^L. G~ averages over a
client and its neighbours, L times in total; pFedHN is G = I. The target models are
Theta* = W T. The embeddings start at V0. The entries of W and V0 are independent standard
normals. W is known; it is unique only up to a k x k factor. The first m clients are attacked
and give no gradient. In the paper their gradient is zero in expectation; its variance can only
add to the risk, since embeddings are linear in it. The risk is
E sum_i ||theta_i - theta*_i||^2 / n.

**Limit of training.** Let B be the identity without its first m ones, and ^+ the
pseudo-inverse. Gradient descent on the benign clients' loss 1/2 ||(W V G - Theta*) B||^2 stays
in V0 plus the row space of (G B)', and converges to

    V^ = V0 + (T - V0 G) B (G B)^+

**Risk.** A constant C [n, n] describes the targets: T = U C, where the entries of U [k, n] are
independent standard normals. With the projection H = G B (G B)^+,

    V^ G - T = V0 (I - H) G + U (C B (G B)^+ G - C)

The two terms are uncorrelated, and E ||W U X||^2 = d k ||X||^2 for a constant X. The columns of
(I - H) G are zero for benign clients and M = (I - H) G_{1:m} for the others, so that

    risk = d k / n (r + ||C B (G B)^+ G - C||^2),    r = ||M||^2

With G = I this is the risk of pFedHN, d k / n sum_{i<=m} (1 + ||c_i||^2). For the three kinds
of targets in `REGIMES` it follows:

    averaged: T = V* G with V* = U, so C = G, and C B (G B)^+ G - C = -(I - H) G
        panacea  2 d k r / n
        pfedhn   d k / n sum_{i<=m} (1 + ||g_i||^2)
    consistent: T = T G~ = u c', so C = e_1 c' with c' G = c', and again -C (I - H) G
        panacea  d k / n (r + ||c' M||^2)
        pfedhn   d k / n sum_{i<=m} (1 + c_i^2)
    unrelated: T = V* = U, so C = I; with Q = G_{1:m} and P the other columns,
        panacea  d k / n (r + ||P^+ Q||^2 + n - rank P)
        pfedhn   2 d k m / n

The theorems state 2 d k m / n for pFedHN (III.2) and 2 d k r / n for Panacea (III.3), for all
targets.

**Normalisation.** The paper defines G~ with entries 1 / (|N(i)| + 1) in row i where j is a
neighbour of i: rows sum to one. Embeddings are columns, and the proofs need columns that sum to
one, which is the transpose. Then ||g_i||^2 <= 1, which gives lemma III.4, r <= ||Q||^2 <= m,
and c = 1 is consistent: all clients have the same target model. With rows that sum to one, c is
the stationary distribution of a random walk on the relations; on a connected undirected graph
it is |N(i)| + 1 up to a factor.
"""

import itertools

import numpy as np

RANK = 1e-10  # singular values below this share of the largest count as zero
NORMALISATIONS = ("row", "column")  # what sums to one in G~
REGIMES = ("averaged", "consistent", "unrelated")  # kinds of targets
METHODS = ("pfedhn", "panacea")


def _ring(n, rng, density):
    return np.isin(np.subtract.outer(np.arange(n), np.arange(n)) % n, (1, n - 1))


def _random(n, rng, density):
    above = np.triu(rng.random((n, n)) < density, 1)
    return above | above.T


def _star(n, rng, density):
    return np.logical_xor.outer(np.arange(n) == 0, np.arange(n) == 0)


# (clients, generator, density) -> adjacency [n, n] with receivers as rows
GRAPHS = {
    "empty": lambda n, rng, density: np.zeros((n, n), bool),
    "clique": lambda n, rng, density: ~np.eye(n, dtype=bool),
    "ring": _ring,
    "random": _random,  # joins each pair with probability `density`
    "star": _star,  # client 0 is the hub
}


def adjacency_of(graph) -> np.ndarray:
    """Adjacency [n, n] of a client graph of `graphfl_jax.data.relations`; receivers as rows."""
    n = graph.nodes.shape[0]
    adjacency = np.zeros((n, n), bool)
    adjacency[graph.receivers, graph.senders] = True
    return adjacency


def averaging(adjacency, normalisation: str) -> np.ndarray:
    """G~ of one graph or of a stack [..., n, n], with rows or columns that sum to one."""
    n = adjacency.shape[-1]
    rows = np.asarray(adjacency, float) + np.eye(n)
    rows = rows / rows.sum(axis=-1, keepdims=True)
    return rows if normalisation == "row" else np.swapaxes(rows, -1, -2)


def consistent(step) -> np.ndarray:
    """The limit c [n] of c' = 1' G~^t, scaled to mean one; it satisfies c' G~ = c'."""
    c = np.ones(len(step))
    while not np.allclose(c @ step, c, rtol=0, atol=1e-11):
        # Reached only if rows sum to one. Rounding errors would grow with the power of G~.
        c, step = c @ step, step @ step
        c, step = c / c.mean(), step / step.sum(axis=1, keepdims=True)
    return c


def targets(step, layers: int) -> np.ndarray:
    """C of each of `REGIMES`: [3, n, n]."""
    n = len(step)
    rank_one = np.zeros((n, n))
    rank_one[0] = consistent(step)
    return np.stack([np.linalg.matrix_power(step, layers), rank_one, np.eye(n)])


def residual(graph, attacked: int) -> np.ndarray:
    """(I - H) G [..., n, n]: M in the columns of attacked clients, zero in the others."""
    benign = _benign_columns(graph, attacked)
    return graph - benign @ _inverse(benign) @ graph


def risk(graph, target, attacked: int, *, params: int, embedding: int) -> float:
    """The risk of embeddings trained through G = `graph` for targets with C = `target`."""
    fitted = _inverse(_benign_columns(graph, attacked)) @ graph
    bias = _benign_columns(target, attacked) @ fitted - target
    r = np.sum(residual(graph, attacked) ** 2)
    return float(params * embedding / len(graph) * (r + np.sum(bias**2)))


def stated_risks(graph, attacked: int, *, params: int, embedding: int) -> dict[str, float]:
    """The risks that theorems III.2 and III.3 state."""
    r = np.sum(residual(graph, attacked) ** 2)
    scale = 2 * params * embedding / len(graph)
    return {"pfedhn": scale * attacked, "panacea": float(scale * r)}


def conditions(step, layers: int, attacked: int) -> dict:
    """The properties of G~ that the theorems assume, as they are for one graph."""
    graph = np.linalg.matrix_power(step, layers)
    eigenvalues = np.sort(np.abs(np.linalg.eigvals(step)))[::-1]
    return {
        "clients": len(step),
        "attacked": attacked,
        "rank": int(np.linalg.matrix_rank(step, rtol=RANK)),  # III.1 assumes n
        # Spectral gap. If it is positive, V = V G~ holds only for V = v c'.
        "gap": float(max(1 - eigenvalues[1], 0.0)),
        # Smallest and largest; III.2 assumes 1.
        "column_sums": [float(end(step.sum(axis=0))) for end in (np.min, np.max)],
        "largest_column": float(np.sum(graph**2, axis=0).max()),  # ||g_i||^2; III.3: at most 1
        "r": float(np.sum(residual(graph, attacked) ** 2)),  # III.4: at most m
    }


def extremes(clients: int, *, directed: bool) -> dict:
    """Largest ratios over all graphs with so many clients and all m < n.

    Returns:
      ``r_per_attacked``: the largest r / m for both normalisations (lemma III.4: at most 1).
      ``attacked`` and ``edges``, pairs of receiver and sender: where it is reached with rows
      that sum to one.
      ``panacea_per_pfedhn``: the largest ratio of the risks where all clients have the same
      target model, c = 1, and columns sum to one.
    """
    pairs = [(i, j) for i, j in itertools.permutations(range(clients), 2) if directed or i < j]
    receivers, senders = np.array(pairs).T
    bits = (np.arange(2 ** len(pairs))[:, None] >> np.arange(len(pairs))) & 1 == 1
    adjacency = np.zeros((len(bits), clients, clients), bool)
    adjacency[:, receivers, senders] = bits
    if not directed:
        adjacency[:, senders, receivers] |= bits
    counts = range(1, clients)  # of attacked clients

    def ratios(normalisation, m):
        missed = residual(averaging(adjacency, normalisation), m)
        r = np.sum(missed**2, axis=(1, 2))
        return r / m, (r + np.sum(missed.sum(axis=1) ** 2, axis=1)) / (2 * m)

    rows, columns = (
        np.array([ratios(normalisation, m) for m in counts]) for normalisation in NORMALISATIONS
    )  # [m, 2, graphs]
    m, worst = np.unravel_index(np.argmax(rows[:, 0]), rows[:, 0].shape)
    return {
        "graphs": len(adjacency),
        "clients": clients,
        "directed": directed,
        "r_per_attacked": {
            "row": rows[:, 0].max().item(),
            "column": columns[:, 0].max().item(),
        },
        "attacked": counts[m],
        "edges": np.argwhere(adjacency[worst]).tolist(),
        "panacea_per_pfedhn": columns[:, 1].max().item(),
    }


def _benign_columns(matrix, attacked):
    """The matrix with zeros in the columns of attacked clients."""
    masked = np.array(matrix, float)
    masked[..., :attacked] = 0.0
    return masked


def _inverse(matrix):
    return np.linalg.pinv(matrix, rtol=RANK)
