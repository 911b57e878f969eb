"""What the scripts that score other libraries share: the clients, the training and the line.

Ten clients train LeNet from its initialisation in PyTorch by SGD, once over their 600 images in
each round. All clients train in every round. A script prints
one line of JSON per run: the library, its version, the method, the seed, and the mean over
clients of the accuracies in % on their test images, at P after the last round.
"""

import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

ROUNDS, BATCH, RATE = 40, 50, 0.1  # as in experiments/paper/same_clients.py


def clients_of(file: Path) -> list[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Per client, the images [n, 1, 28, 28] from -1 to 1 and the labels [n] of each part."""
    arrays = np.load(file)
    x = torch.from_numpy(arrays["x"]).permute(0, 3, 1, 2).float() / 127.5 - 1
    y = torch.from_numpy(arrays["y"]).long()

    def part(client, name):
        chosen = torch.from_numpy((arrays["client"] == client) & (arrays["split"] == name))
        return x[chosen], y[chosen]

    return [
        {name: part(client, name) for name in ("train", "test")}
        for client in range(arrays["client"].max() + 1)
    ]


def batches(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of one pass over shuffled examples."""
    for rows in torch.randperm(len(y)).split(BATCH):
        yield x[rows], y[rows]


def accuracy(model: Callable[[torch.Tensor], torch.Tensor], x, y) -> float:
    """The share of the examples that a model labels correctly, in %."""
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == y).float().mean())


def show(library: str, method: str, seed: int, scores: list[float], *, version="") -> None:
    """Prints the line of a run.

    Args:
      library: the name of its package on the package index, or what it is called.
      scores: of the clients.
      version: if it is no package.
    """
    line = {
        "library": library,
        "version": version or metadata.version(library),
        "method": method,
        "seed": seed,
        "accuracy": round(float(np.mean(scores)), 3),
    }
    print(json.dumps(line), flush=True)
