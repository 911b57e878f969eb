"""Rounds of FLHA-GHN in idiomatic PyTorch, for `bench --against=torch`.

It is imported only if PyTorch is installed. Client by client, the hypernetwork generates the
network of the client's architecture in every local step, and torch.optim trains the
hypernetwork's weights. These are named as in JAX, joined by "/". Kernels of layers have
PyTorch's layout, so the outputs of a type's network are in that order, see
`recorded_rounds.export_weights`.
"""

import numpy as np
import torch
from ml_collections import ConfigDict
from torch import Tensor
from torch.nn import functional as F

from experiments.benchmarks.recorded_rounds import Draws
from experiments.benchmarks.torch_models import tensor
from graphfl_jax.architecture import JOINS, Architecture, layer_of
from graphfl_jax.build import Experiment
from graphfl_jax.models.images import BATCH_NORM_EPSILON


class Generator:
    """The networks of all architectures, generated from shared weights."""

    def __init__(self, architectures: list[Architecture], config: ConfigDict):
        self.config = config
        self.types = sorted({node.type for graph in architectures for node in graph.nodes})
        self.layers = [kind for kind in self.types if layer_of(kind)]
        self.graphs = [self.graph_of(architecture) for architecture in architectures]

    def graph_of(self, architecture: Architecture):
        """One-hot types [n, types], and the edges as a matrix [receivers, senders]."""
        numbers = torch.tensor([self.types.index(node.type) for node in architecture.nodes])
        edges = torch.zeros(len(numbers), len(numbers))
        for sender, receiver in architecture.edges:
            edges[receiver, sender] = 1
            if self.config.ghn_edges == "bidirectional":
                edges[sender, receiver] = 1
        return F.one_hot(numbers, len(self.types)).float(), edges

    def layers_of(self, weights: dict[str, Tensor], k: int, architecture: Architecture):
        """The kernel, the scale (None in a head) and the bias of each node with parameters."""
        nodes, edges = self.graphs[k]
        for number in range(self.config.ghn_depth):
            prefix = "gnn/others/" if number else "gnn/first/"
            layer = {
                name.removeprefix(prefix): leaf[number - 1] if number else leaf
                for name, leaf in weights.items()
                if name.startswith(prefix)
            }
            mixed = (edges @ nodes) @ layer["Dense_0/kernel"] + layer["Dense_0/bias"]
            nodes = F.relu(mixed + nodes @ layer["Dense_1/kernel"])
        made = {}
        for place, node in enumerate(architecture.nodes):
            if node.type not in self.layers:
                continue
            number = self.layers.index(node.type)
            hidden = nodes[place] @ weights["hidden/kernel"][number]
            hidden = F.leaky_relu(hidden + weights["hidden/bias"][number])
            head = f"heads/{node.type}"
            row = hidden @ weights[f"{head}/kernel"] + weights[f"{head}/bias"]
            made[place] = parameters_of(row, node.type)
        return made

    def predict(self, weights, k: int, architecture: Architecture, x: Tensor) -> Tensor:
        """The outputs [B, O] of architecture number k for images [B, C, H, W]."""
        made, values = self.layers_of(weights, k, architecture), [x]
        for number, node in list(enumerate(architecture.nodes))[1:-1]:
            *shortcuts, main = [values[sender] for sender in architecture.senders(number)]
            if node.type == "concat":
                x = torch.cat([*(subsample(value, main) for value in shortcuts), main], dim=1)
            else:
                x = main
                if node.type != "add":
                    kernel, scale, bias = made[number]
                    layer = layer_of(node.type)
                    x = F.conv2d(x, kernel, stride=layer.stride, padding=layer.size // 2)
                    x = F.batch_norm(
                        x, None, None, scale, bias, training=True, eps=BATCH_NORM_EPSILON
                    )
                for shortcut in shortcuts:
                    value = subsample(shortcut, x)
                    added = x.shape[1] - value.shape[1]
                    x = x + (F.pad(value, (0, 0, 0, 0, 0, added)) if added else value)
            receivers = architecture.receivers(number)
            if any(architecture.nodes[node].type not in JOINS for node in receivers):
                x = F.relu(x)
            values.append(x)
        head = len(architecture.nodes) - 1
        (last,) = architecture.senders(head)
        kernel, _, bias = made[head]
        return F.linear(values[last].mean(dim=(2, 3)), kernel, bias)


def subsample(x: Tensor, like: Tensor) -> Tensor:
    """Every n-th row and column of x [B, C, H, W], for the height and width of `like`."""
    down, across = (-(-x.shape[axis] // like.shape[axis]) for axis in (2, 3))
    return x[:, :, ::down, ::across]


def parameters_of(row: Tensor, kind: str) -> tuple[Tensor, Tensor | None, Tensor]:
    """Kernel, scale and bias of a layer from the outputs of the network of its type."""
    layer = layer_of(kind)
    *sides, inputs, outputs = layer.kernel
    shape = (outputs, inputs, *sides)
    sizes = [outputs, outputs, int(np.prod(shape)), *([outputs] if sides else [])]
    bias, channels, kernel, *scale = row.split(sizes)
    kernel = kernel.view(shape) * (1 + channels).view(-1, *[1] * (len(shape) - 1))
    return kernel, 1 + scale[0] if scale else None, bias


class LayeredPlayer:
    """A federation of several architectures; it has the methods of `torch_player.Player`."""

    def __init__(self, experiment: Experiment, config: ConfigDict, variant: str):
        algorithm = experiment.build(experiment.hparams, 0)
        self.architectures = [client.model.architecture for client in algorithm.clients]
        self.groups = [tensor(group.ids).long() for group in experiment.groups]
        self.cohort_sizes = [group.cohort_size for group in experiment.groups]
        self.generator = Generator(self.architectures, config.algorithm)
        train = experiment.federation.data.train
        images = tensor(train.x)
        if images.dtype == torch.uint8:
            images = images.float() / 127.5 - 1
        self.x = images.permute(0, 1, 4, 2, 3).contiguous()  # [N, S, C, H, W]
        self.y, self.counts = tensor(train.y).long(), tensor(train.count).long()
        self.config, self.hparams = config, experiment.hparams

    def play(self, draws: Draws) -> Tensor:
        """Plays a round and returns the mean loss of the clients' steps."""
        number = {int(i): k for k, ids in enumerate(self.groups) for i in ids}
        trained, losses = [], []
        for i, indices in zip(draws.ids.tolist(), draws.indices, strict=True):
            weights, loss = self.train(i, number[i], indices)
            trained.append(weights)
            losses.append(loss)
        self.current = {
            name: torch.stack([client[name] for client in trained]).mean(0)
            for name in self.current
        }
        return torch.stack(losses).mean()

    def train(self, i: int, k: int, indices: Tensor):
        """The weights after the steps of client i with architecture k, and its mean loss."""
        weights = {name: leaf.clone().requires_grad_() for name, leaf in self.current.items()}
        rates, every = self.hparams, list(weights.values())
        optimizer = torch.optim.SGD(
            every,
            rates["client_lr"],
            rates["client_momentum"],
            weight_decay=rates["client_weight_decay"],
        )
        losses = []
        for batch in indices:
            optimizer.zero_grad()
            outputs = self.generator.predict(
                weights, k, self.architectures[k], self.x[i, batch]
            )
            loss = F.cross_entropy(outputs, self.y[i, batch])
            loss.backward()
            for weight in every:  # of types that this architecture lacks
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            torch.nn.utils.clip_grad_norm_(every, rates["client_clip"])
            optimizer.step()
            losses.append(loss.detach())
        return {name: leaf.detach() for name, leaf in weights.items()}, torch.stack(
            losses
        ).mean()

    def draw(self) -> Draws:
        """The draws of a round, by PyTorch's generator."""
        ids = torch.cat(
            [
                group[torch.randperm(len(group))[:size].sort().values]
                for group, size in zip(self.groups, self.cohort_sizes, strict=True)
            ]
        )
        shape = (self.config.local_steps, self.config.batch_size)
        indices = torch.stack([torch.randint(int(self.counts[i]), shape) for i in ids])
        return Draws(ids, indices, None)

    def start(self, weights: dict[str, np.ndarray]) -> None:
        """Starts the federation again, with these weights of the server."""
        self.current = {name: tensor(leaf) for name, leaf in weights.items()}

    def weights(self) -> dict[str, np.ndarray]:
        """The current weights of the server."""
        return {name: leaf.numpy().copy() for name, leaf in self.current.items()}
