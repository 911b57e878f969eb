"""Writes the clients of the table "same_clients" for the other libraries: DIR/SEED.npz.

    PYTHONPATH=. .venv/bin/python experiments/peers/clients.py DIR --data_root=DOWNLOADS

The arrays of a file are x, y, client and split, as `graphfl run custom` reads them: the images
uint8 [n, 28, 28, 1], their labels [n], the number of the client [n], and "train" or "test" [n].
"""

import argparse
from pathlib import Path

import numpy as np

from experiments.paper import same_clients
from experiments.paper.configurations import paper_config
from graphfl_jax.build import load_federation


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("folder", type=Path)
    flags.add_argument("--data_root", help="folder of the downloads; the default is graphfl's")
    flags = flags.parse_args()
    flags.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(same_clients.SEEDS):
        config = paper_config(same_clients.CELL, "fedavg", root=flags.data_root)
        config.seed = seed
        data = load_federation(config).data
        np.savez(flags.folder / f"{seed}.npz", **arrays(data.train, data.evals["test"]))


def arrays(train, test):
    """The real rows of all clients."""
    rows = [
        (part.x[client, :count], part.y[client, :count], client, name)
        for name, part in (("train", train), ("test", test))
        for client, count in enumerate(part.count)
    ]
    x, y, clients, parts = zip(*rows, strict=True)
    counts = list(map(len, y))
    return {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        "client": np.repeat(clients, counts),
        "split": np.repeat(parts, counts),
    }


if __name__ == "__main__":
    main()
