"""Scores of pFedGraph's server, by its authors, on the clients that clients.py wrote.

    /path/to/python experiments/peers/pfedgraph_scores.py DIR --checkout=PFEDGRAPH --seeds=5

See scored.py. PFEDGRAPH is a checkout of https://github.com/MediaBrain-SJTU/pFedGraph, read at
commit 4f5f17c. The environment has PyTorch, CVXPY, and the packages of fluke_round.py.

Differences: the authors' functions compute the shares and the mixtures. The clients are trained
by this script, since that of the authors needs a GPU and data sets of its list. Training has no
cosine term, whose sign the authors' script has reversed, and no momentum. The score is that of
the last round, not of the round that is best on validation.
"""

import argparse
import copy
import importlib
import sys
from pathlib import Path

import fluke_round
import scored
import torch

ALPHA = 0.8  # the weight of the distance to the shares of FedAvg


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("folder", type=Path)
    flags.add_argument("--checkout", type=Path, required=True)
    flags.add_argument("--seeds", type=int, default=5)
    flags = flags.parse_args()
    sys.path.insert(0, str(flags.checkout / "pytorch"))
    server = importlib.import_module("pfedgraph_cosine.utils")
    for seed in range(flags.seeds):
        torch.manual_seed(seed)
        clients = scored.clients_of(flags.folder / f"{seed}.npz")
        networks = train(server, clients)
        scores = [
            scored.accuracy(network, *client["test"])
            for network, client in zip(networks, clients, strict=True)
        ]
        scored.show("pFedGraph", "pfedgraph", seed, scores, version="4f5f17c")


def train(server, clients):
    """The networks of all clients after the local training of the last round."""
    first = fluke_round.lenet()
    networks = {number: copy.deepcopy(first) for number in range(len(clients))}
    moved = {
        number: {name: torch.zeros_like(value) for name, value in first.named_parameters()}
        for number in networks
    }
    counts = [len(client["train"][1]) for client in clients]
    shares = {number: count / sum(counts) for number, count in enumerate(counts)}
    graph = torch.ones(len(clients), len(clients)) / (len(clients) - 1)
    graph.fill_diagonal_(0)
    start = first.state_dict()
    for played in range(scored.ROUNDS):
        if played:
            graph = server.update_graph_matrix_neighbor(
                graph, networks, start, moved, shares, ALPHA, "all"
            )
            server.aggregation_by_graph(None, graph, networks, start)
        for network, client in zip(networks.values(), clients, strict=True):
            train_locally(network, *client["train"])
    return networks.values()


def train_locally(network, x, y):
    optimizer = torch.optim.SGD(network.parameters(), lr=scored.RATE)
    for images, labels in scored.batches(x, y):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
