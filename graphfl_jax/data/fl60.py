"""FL-60: binary classification in the plane for 60 clients on a spiral.

The data set is DG-60 of Xu et al., Graph-Relational Domain Adaptation, ICLR 2022
(arXiv:2202.03628). The published arrays do not follow the formula that is printed in the paper,
so there are two loaders: `fl60` follows the arrays, `fl60_paper_formula` follows the formula.
"""

from pathlib import Path
from typing import Annotated

import numpy as np

from graphfl_jax.data import files, relations
from graphfl_jax.data.common_settings import DataPath, GeneratorSeed, ValFraction, forms
from graphfl_jax.data.federation import Federation, Positions, federate
from graphfl_jax.data.pickles import load_pickle
from graphfl_jax.data.splits import RandomSplit

NUM_CLIENTS = 60
PER_CLASS = 50  # examples of each class per client

_FILES = ("real", "file")  # sources that read the published file


def fl60(
    *,
    root,
    source: Annotated[str, forms("generated", *_FILES)] = "auto",
    path: DataPath = "",
    val_fraction: ValFraction = 0.0,
    generator_seed: GeneratorSeed = 0,
    seed,
) -> Federation:
    """Generates FL-60, or reads the published file.

    Client i has an angle from U(0, 2 pi) and the mean m = r (cos angle, sin angle), where
    r = 1 + 6 angle / (2 pi). Its 50 examples of class 0 have mean m and its 50 examples of
    class 1 have mean -m. The noise is standard normal, truncated to the unit disc, so the line
    through the origin orthogonal to m separates the classes. Two clients are joined with
    probability cos(difference of their angles), or 0 where that is below 0.2: 552 edges in
    expectation, 545 in the published file.

    The published file is root/dg60/toy_d60_spiral.pkl. The sources "real" and "file" read it,
    "auto" and "generated" generate the data.

    Returns:
      60 clients of 100 examples, x [2] float32, labels 0 and 1.

    Raises:
      ValueError: `path` is set for a source that reads no file, or the file is damaged.
      FileNotFoundError: the published file is missing.
    """
    files.check_path(path, source, reading=_FILES)
    if source in _FILES:
        data, source = _read_published(root, path), "real"
    else:
        data, source = _draw_spiral(np.random.default_rng(generator_seed)), "generated"
    return _federate("fl60", *data, source, RandomSplit(seed, val_fraction))


def fl60_paper_formula(
    *, val_fraction: ValFraction = 0.0, generator_seed: GeneratorSeed = 0, seed
) -> Federation:
    """Generates FL-60 by the formula of the paper, in which the classes overlap.

    With omega from U(0, 2 pi), the classes are normal with means +-(omega / pi) (cos omega,
    sin omega) and identity covariance. Two clients are joined with probability
    0.5 + 0.5 cos(difference of their omegas). The best classifier of a client is right with
    probability Phi(omega / pi), so the Bayes accuracy over clients is about 0.805. A test
    accuracy well above it shows an error in an experiment.

    Returns:
      60 clients of 100 examples, x [2] float32, labels 0 and 1.
    """
    rng = np.random.default_rng(generator_seed)
    omega = rng.uniform(0, 2 * np.pi, NUM_CLIENTS)
    noise = rng.standard_normal((NUM_CLIENTS, 2 * PER_CLASS, 2))
    x, y = _place_classes(omega, omega / np.pi, noise)
    edges = _draw_edges(rng, 0.5 + 0.5 * np.cos(omega[:, None] - omega))
    split = RandomSplit(seed, val_fraction)
    return _federate("fl60_paper_formula", x, y, edges, "generated", split)


def _draw_spiral(rng):
    angle = rng.uniform(0, 2 * np.pi, NUM_CLIENTS)
    shape = (NUM_CLIENTS, 2 * PER_CLASS)
    # A standard normal in the plane has P(radius < r) = 1 - exp(-r^2 / 2). Truncation to the
    # unit disc divides this by its value at r = 1. Sampling is by the inverse of that function.
    inside = 1 - np.exp(-0.5)
    radius = np.sqrt(-2 * np.log1p(-inside * rng.uniform(size=shape)))
    direction = rng.uniform(0, 2 * np.pi, shape)
    noise = radius[..., None] * np.stack([np.cos(direction), np.sin(direction)], axis=-1)
    x, y = _place_classes(angle, 1 + 6 * angle / (2 * np.pi), noise)
    cosine = np.cos(angle[:, None] - angle)
    return x, y, _draw_edges(rng, np.where(cosine < 0.2, 0, cosine))


def _place_classes(angle, distance, noise):
    """Adds the means of the classes to the noise [N, 100, 2]; returns x and labels [N, 100]."""
    mean = distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)  # [N, 2]
    labels = np.repeat([0, 1], PER_CLASS)
    side = 1 - 2 * labels  # +1 for class 0, -1 for class 1
    return noise + side[:, None] * mean[:, None], np.tile(labels, (NUM_CLIENTS, 1))


def _draw_edges(rng, probability):
    """Draws undirected edges [m, 2] with the probabilities above the diagonal of [N, N]."""
    drawn = rng.uniform(size=probability.shape) < probability
    return np.argwhere(np.triu(drawn, k=1))


def _read_published(root, path):
    """Reads inputs, labels and edges from the published file."""
    path = Path(path) if path else Path(root) / "dg60" / "toy_d60_spiral.pkl"
    if not path.is_file():
        raise files.MissingFilesError(
            f"fl60: no file {path}; put toy_d60_spiral.pkl of github.com/Wang-ML-Lab/GRDA "
            "there",
            "generated",
        )
    content = load_pickle(path)
    total = 2 * PER_CLASS * NUM_CLIENTS
    shapes = {
        "data": (total, 2),
        "label": (total,),
        "domain": (total,),
        "A": (NUM_CLIENTS, NUM_CLIENTS),
    }
    for key, shape in shapes.items():
        there = isinstance(content, dict) and key in content
        actual = np.shape(content[key]) if there else None
        if actual != shape:
            raise ValueError(
                f"{path}: {key!r} has shape {actual} and not {shape}; replace it by the "
                "published file"
            )
    data, label, domain, adjacency = (np.asarray(content[key]) for key in shapes)
    rules = {
        "label": np.isin(label, (0, 1)).all(),
        "domain": np.isin(domain, np.arange(NUM_CLIENTS)).all(),
        "A": np.isin(adjacency, (0, 1)).all()
        and (adjacency == adjacency.T).all()
        and not adjacency.trace(),
    }
    for key, holds in rules.items():
        if not holds:
            raise ValueError(
                f"{path}: {key!r} has wrong values (labels are 0 or 1, domains are 0 to 59, A "
                "is 0 or 1, symmetric, with a zero diagonal); use the published file"
            )
    clients = [domain == client for client in range(NUM_CLIENTS)]
    edges = np.argwhere(np.triu(adjacency, k=1))
    return [data[rows] for rows in clients], [label[rows] for rows in clients], edges


def _federate(name, x, y, edges, source, split):
    # A client's place is the mean of its class 0; that of class 1 is opposite.
    places = [rows[labels == 0].mean(axis=0) for rows, labels in zip(x, y, strict=True)]
    return federate(
        [f"domain {client}" for client in range(NUM_CLIENTS)],
        x=x,
        y=y,
        graph=relations.from_edges(NUM_CLIENTS, edges),
        task="classification",
        outputs=2,
        name=name,
        source=source,
        split=split,
        positions=Positions(("x", "y"), np.array(places)),
    )
