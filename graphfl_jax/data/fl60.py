"""FL-60: sixty clients on a spiral, each a binary problem in the plane.

The data set is DG-60 of Xu et al., Graph-Relational Domain Adaptation, ICLR 2022
(arXiv:2202.03628). The published arrays do not follow the formula that is printed for them, so
there are two loaders: `fl60` follows the arrays, `fl60_paper_formula` the print.
"""

from pathlib import Path

import numpy as np

from graphfl_jax.data import federation, files, relations

NUM_CLIENTS = 60
PER_CLASS = 50


def fl60(*, root, source, path, seed, val_fraction, generator_seed) -> federation.Federation:
    """Loads FL-60, generated from `generator_seed` or read from the published file.

    Client i has an angle from U(0, 2 pi) and the mean m = r (cos angle, sin angle), r = 1 +
    6 angle / (2 pi). Its fifty examples of class 0 lie around m and those of class 1 around -m,
    standard normal truncated to the unit disc; so the line through the origin across m
    separates them. Two clients are joined with probability cos(difference of their angles), but
    never where that is below 0.2: 552 edges in expectation, 545 in the published file.

    `source` is "auto" or "generated" for that law; "real" or "file" for the authors' file
    toy_d60_spiral.pkl at `path`, or under dg60 in `root` where `path` is empty.
    """
    if source in ("real", "file"):
        x, y, edges = _published(root, path)
    else:
        _check_generated("fl60", source, path, accepted="auto, generated, real, file")
        x, y, edges = _spiral(_generator(generator_seed))
    source = "real" if source in ("real", "file") else "generated"
    return _federate("fl60", x, y, edges, source=source, seed=seed, val_fraction=val_fraction)


def fl60_paper_formula(
    *, root, source, path, seed, val_fraction, generator_seed
) -> federation.Federation:
    """Generates FL-60 by the printed formula, on which no method can be perfect.

    With omega from U(0, 2 pi), the classes are normal with means +-(omega / pi) (cos omega,
    sin omega) and identity covariance, and two clients are joined with probability
    0.5 + 0.5 cos(difference of their omegas). The best classifier of a client is right with
    probability Phi(omega / pi), so the Bayes accuracy over clients is about 0.805: a score well
    above it is a sign of a fault. There is no file: `source` is "auto" or "generated", and
    `root` is not used.
    """
    _check_generated("fl60_paper_formula", source, path, accepted="auto, generated")
    rng = _generator(generator_seed)
    omega = rng.uniform(0, 2 * np.pi, NUM_CLIENTS)
    noise = rng.standard_normal((NUM_CLIENTS, 2 * PER_CLASS, 2))
    x, y = _two_classes(omega, omega / np.pi, noise)
    edges = _draw_edges(rng, 0.5 + 0.5 * np.cos(omega[:, None] - omega))
    return _federate(
        "fl60_paper_formula",
        x,
        y,
        edges,
        source="generated",
        seed=seed,
        val_fraction=val_fraction,
    )


def _check_generated(name, source, path, *, accepted):
    if source not in ("auto", "generated"):
        raise ValueError(f"{name}: data.source={source!r} is not known; use one of {accepted}.")
    if path:
        raise ValueError(
            f"{name}: data.path={str(path)!r} is not read with data.source={source!r}; leave "
            "data.path empty or choose a source that reads a file."
        )


def _generator(generator_seed):
    if generator_seed < 0:
        raise ValueError(
            f"data.generator_seed={generator_seed} is negative; set it to zero or more."
        )
    return np.random.default_rng(generator_seed)


def _spiral(rng):
    angle = rng.uniform(0, 2 * np.pi, NUM_CLIENTS)
    shape = (NUM_CLIENTS, 2 * PER_CLASS)
    # A plane standard normal has P(radius < r) = 1 - exp(-r^2 / 2); truncation to the unit disc
    # divides that by its value at 1, and a uniform draw put through the inverse is exact.
    inside = 1 - np.exp(-0.5)
    radius = np.sqrt(-2 * np.log1p(-inside * rng.uniform(size=shape)))
    direction = rng.uniform(0, 2 * np.pi, shape)
    noise = radius[..., None] * np.stack([np.cos(direction), np.sin(direction)], axis=-1)
    x, y = _two_classes(angle, 1 + 6 * angle / (2 * np.pi), noise)
    cosine = np.cos(angle[:, None] - angle)
    return x, y, _draw_edges(rng, np.where(cosine < 0.2, 0, cosine))


def _two_classes(angle, distance, noise):
    """Moves half of each client's noise [N, 100, 2] to its mean, half to the opposite."""
    mean = distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)  # [N, 2]
    labels = np.repeat([0, 1], PER_CLASS)
    side = 1 - 2 * labels  # class 0 at +mean, class 1 at -mean
    return noise + side[:, None] * mean[:, None], np.tile(labels, (NUM_CLIENTS, 1))


def _draw_edges(rng, probability):
    """Draws each undirected edge once, with the probabilities above the diagonal of [N, N]."""
    drawn = rng.uniform(size=probability.shape) < probability
    return np.argwhere(np.triu(drawn, k=1))


def _published(root, path):
    path = Path(path) if path else Path(root) / "dg60" / "toy_d60_spiral.pkl"
    if not path.is_file():
        raise FileNotFoundError(
            f"fl60: no file {path}; put toy_d60_spiral.pkl of github.com/Wang-ML-Lab/GRDA "
            "there, or set data.source=generated."
        )
    content = files.load_pickle(path)
    total = 2 * PER_CLASS * NUM_CLIENTS
    shapes = {
        "data": (total, 2),
        "label": (total,),
        "domain": (total,),
        "A": (NUM_CLIENTS, NUM_CLIENTS),
    }
    for key, shape in shapes.items():
        found = np.shape(content[key]) if isinstance(content, dict) and key in content else None
        if found != shape:
            raise ValueError(
                f"fl60: {path} has {key!r} of shape {found} and not {shape}; "
                "replace it by the published file."
            )
    data, label, domain, joined = (np.asarray(content[key]) for key in shapes)
    rules = {
        "label": np.isin(label, (0, 1)).all(),
        "domain": np.isin(domain, np.arange(NUM_CLIENTS)).all(),
        "A": np.isin(joined, (0, 1)).all()
        and (joined == joined.T).all()
        and not joined.trace(),
    }
    for key, holds in rules.items():
        if not holds:
            raise ValueError(
                f"fl60: {path} has wrong values in {key!r} (labels are 0 or 1, domains 0 to "
                "59, A is 0 or 1, symmetric, with a zero diagonal); use the published file."
            )
    rows = [domain == client for client in range(NUM_CLIENTS)]
    return [data[r] for r in rows], [label[r] for r in rows], np.argwhere(np.triu(joined, k=1))


def _federate(name, x, y, edges, *, source, seed, val_fraction):
    return federation.federate(
        [f"domain {client}" for client in range(NUM_CLIENTS)],
        x=x,
        y=y,
        graph=relations.from_edges(NUM_CLIENTS, edges),
        task="classification",
        name=name,
        source=source,
        val_fraction=val_fraction,
        seed=seed,
        outputs=2,
    )
