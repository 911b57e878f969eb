"""Small federations with known answers, and small settings for all methods."""

import numpy as np

from graphfl_jax.configs import base, change
from graphfl_jax.core import FederatedData
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation
from graphfl_jax.examples import Examples

# Sizes for these federations. They have seven clients, and no other axis has that size, so that
# a test can recognise the axes of clients.
SMALL = {
    "cohort_size": 4,
    "local_steps": 5,
    "batch_size": 6,
    "model.hidden": (5,),
    "algorithm.server_steps": 2,
    "algorithm.embedding_dim": 6,
    "algorithm.width": 8,
    "algorithm.depth": 2,
    "algorithm.ghn_depth": 2,
    "algorithm.ghn_width": 8,
    "hparams.client_lr": 0.1,
    "hparams.server_lr": 0.05,
    "hparams.pfedme_lambda": 1.0,  # times client_lr it must be below 1
    # In a network of five units, what all clients share must not outweigh a client's labels.
    "hparams.fedproto_lambda": 0.01,
    "hparams.fml_alpha": 0.9,
    "hparams.distillation_alpha": 0.01,
}


def small_config(method="panacea", **changes):
    """A method at small sizes; `changes` by dotted name, with __ for the dots."""
    config = base.configure(method, "tpt48", settings=SMALL)
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return change(config, changes)


def two_clusters(num_clients=7, padding=0, filler=0.0) -> Federation:
    """Clients of two kinds, which give the same points opposite labels.

    Even clients label the right half-plane 1, odd clients 0: a shared model is right half of
    the time, and a personal one always. Clients of a kind are neighbours. Numbers of examples
    differ; `padding` more rows of `filler` follow the real ones.
    """
    rng = np.random.default_rng(0)
    kind = np.arange(num_clients) % 2  # [N]

    def examples(smallest):
        counts = smallest + np.arange(num_clients) % 3
        size = counts.max() + padding
        x = rng.uniform(-1, 1, (num_clients, counts.max(), 2)).astype(np.float32)
        x[..., 0] += 0.5 * np.sign(x[..., 0])  # a margin around the border
        y = ((x[..., 0] > 0) ^ kind[:, None]).astype(np.int32)
        real = np.arange(size) < counts[:, None]  # [N, S]
        x = np.pad(x, ((0, 0), (0, padding), (0, 0)))
        y = np.pad(y, ((0, 0), (0, padding)))
        x = np.where(real[..., None], x, np.float32(filler))
        return Examples(x, np.where(real, y, 0).astype(np.int32), counts.astype(np.int32))

    train, val, test = examples(10), examples(8), examples(12)
    pairs = [(i, j) for i in range(num_clients) for j in range(i) if kind[i] == kind[j]]
    data = FederatedData(
        train, {"val": val, "test": test}, relations.from_edges(num_clients, pairs)
    )
    names = tuple(f"client {i}" for i in range(num_clients))
    return Federation(data, "classification", 2, "two_clusters", "generated", "0" * 64, names)


def rename_clients(data: FederatedData, order) -> FederatedData:
    """The same federation with client order[i] called i."""
    order = np.asarray(order)
    new_name = np.argsort(order)
    graph = data.graph
    weights = np.asarray(graph.edges)
    pairs = np.stack([new_name[graph.senders], new_name[graph.receivers]], 1)
    graph = relations.from_edges(len(order), pairs, weights, directed=True)

    def rows(examples):
        return Examples(*(np.asarray(leaf)[order] for leaf in examples))

    return FederatedData(
        rows(data.train), {name: rows(part) for name, part in data.evals.items()}, graph
    )
