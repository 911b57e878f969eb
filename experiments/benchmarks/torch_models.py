"""The PyTorch modules that `torch_player` trains: client models, hypernetworks.

It is imported only if PyTorch is installed.
"""

import numpy as np
import torch
from ml_collections import ConfigDict
from torch import Tensor, nn
from torch.nn import functional as F

from graphfl_jax.architecture import JOINS, Architecture, layer_of
from graphfl_jax.data import relations
from graphfl_jax.models import resnet
from graphfl_jax.models.images import BATCH_NORM_EPSILON


class Forecaster(nn.Module):
    """A GRU as encoder, and a GRU cell as decoder, whose inputs are its own forecasts."""

    def __init__(self, features: int, future: int, hidden: int):
        super().__init__()
        self.future = future
        self.encoder = nn.GRU(features, hidden, batch_first=True)
        self.decoder = nn.GRUCell(features, hidden)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x):
        past = x.shape[1] - self.future
        _, last = self.encoder(x[:, :past])
        return self.forecast(x, last[0])

    def forecast(self, x, h):
        """Forecasts [B, future] for x [B, past + future, F] and the encoder's state [B, H]."""
        past = x.shape[1] - self.future
        value, values = x[:, past - 1, :1], []
        for features in x[:, past:, 1:].unbind(1):
            h = self.decoder(torch.cat([value, features], dim=1), h)
            value = self.readout(h)
            values.append(value)
        return torch.cat(values, dim=1)


class Cell(nn.Module):
    """nn.GRUCell in elementary operations, with the same parameters.

    torch.compile does not accept nn.GRU, and vmap has no rule for its backward pass.
    """

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, features))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden))

    def project(self, x):
        """The part of the gates [..., 3 H] that comes from the inputs [..., F]."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, projected, h):
        """The next state [B, H] from projected inputs [B, 3 H] and the state [B, H]."""
        recurrent = F.linear(h, self.weight_hh, self.bias_hh)
        input_gates, input_new = projected.tensor_split([2 * h.shape[-1]], dim=-1)
        hidden_gates, hidden_new = recurrent.tensor_split([2 * h.shape[-1]], dim=-1)
        r, z = torch.sigmoid(input_gates + hidden_gates).chunk(2, dim=-1)
        new = torch.tanh(input_new + r * hidden_new)
        return new + z * (h - new)

    def forward(self, x, h):
        return self.step(self.project(x), h)


class CellForecaster(Forecaster):
    """A `Forecaster` that consists of `Cell`, with the same parameters in the same order."""

    def __init__(self, features: int, future: int, hidden: int):
        super().__init__(features, future, hidden)
        self.encoder, self.decoder = Cell(features, hidden), Cell(features, hidden)

    def forward(self, x):
        projected = self.encoder.project(x[:, : x.shape[1] - self.future])
        h = torch.zeros_like(projected[:, 0, : projected.shape[-1] // 3])
        for step in projected.unbind(1):
            h = self.encoder.step(step, h)
        return self.forecast(x, h)


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = []
    for fan_in, fan_out in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Normalize(nn.Module):
    """Images [B, C, H, W] with values from 0 to 255, standardised per channel."""

    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x):
        return (x.float() / 255 - self.mean) / self.std


def convolutional(inputs, outputs, is_bytes, *, channels, paddings, widths) -> nn.Sequential:
    """Convolutions of 5 x 5 with ReLU and pooling, then a perceptron with hidden `widths`.

    `inputs` are C, H, W of an image. Bytes become values from -1 to 1.
    """
    layers = [Normalize([0.5], [0.5])] if is_bytes else []
    fan_in, *sizes = inputs
    for features, padding in zip(channels, paddings, strict=True):
        layers += [nn.Conv2d(fan_in, features, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        fan_in, sizes = features, [(size + 2 * padding - 4) // 2 for size in sizes]
    dense = perceptron((fan_in * sizes[0] * sizes[1], *widths, outputs))
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def lenet(inputs, outputs, is_bytes, settings) -> nn.Sequential:
    """LeNet-5; on 28 x 28 its first convolution has a padding of 2."""
    first = 2 if tuple(inputs[1:]) == (28, 28) else 0
    return convolutional(
        inputs, outputs, is_bytes, channels=(6, 16), paddings=(first, 0), widths=(120, 84)
    )


def cnn(inputs, outputs, is_bytes, settings) -> nn.Sequential:
    """The larger network of the FedAvg paper."""
    return convolutional(
        inputs, outputs, is_bytes, channels=(32, 64), paddings=(2, 2), widths=(512,)
    )


def normed_conv(fan_in: int, features: int, size: int, stride: int) -> list[nn.Module]:
    """A convolution that halves height and width with stride 2, and its batch normalisation.

    It normalises by the statistics of the batch and keeps no running averages.
    """
    return [
        nn.Conv2d(fan_in, features, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(features, track_running_stats=False),
    ]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a skip connection."""

    def __init__(self, fan_in: int, features: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            *normed_conv(fan_in, features, 3, stride),
            nn.ReLU(),
            *normed_conv(features, features, 3, 1),
        )
        same = stride == 1 and fan_in == features
        self.skip = nn.Sequential(*[] if same else normed_conv(fan_in, features, 1, stride))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet18(inputs, outputs, is_bytes, settings) -> nn.Sequential:
    """torchvision's ResNet-18 with `settings.width` channels in its first stage."""
    widths = [settings.width * 2**stage for stage in range(4)]
    blocks = [
        BasicBlock(widths[max(0, stage - (not i))], widths[stage], 2 if stage and not i else 1)
        for stage in range(4)
        for i in range(resnet.BLOCKS)
    ]
    return nn.Sequential(
        Normalize(resnet.MEAN, resnet.STD),
        *normed_conv(3, widths[0], 7, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], outputs),
    )


# For each: (C, H, W of an image, outputs, whether images are bytes, config.model) -> module.
IMAGE_MODELS = {"lenet": lenet, "cnn": cnn, "resnet18": resnet18}


class Sage(nn.Module):
    """A GraphSAGE layer with the mean over neighbours."""

    def __init__(self, fan_in: int, fan_out: int):
        super().__init__()
        self.neighbours = nn.Linear(fan_in, fan_out)
        self.own = nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, embeddings, propagation):
        return self.neighbours(propagation @ embeddings) + self.own(embeddings)


class Hypernetwork(nn.Module):
    """Panacea's hypernetwork: an encoder of all clients' embeddings, a generator of models."""

    def __init__(self, graph, size: int, *, embedding_dim, width, depth, lambda_d):
        super().__init__()
        self.propagation = tensor(relations.propagation_array(graph, "sage"))  # [N, N]
        self.adjacency = adjacency = tensor(relations.adjacency(graph))  # [N, N]
        self.off_diagonal = 1 - torch.eye(len(adjacency))
        self.lambda_d = lambda_d
        self.embeddings = nn.Parameter(torch.randn(len(adjacency), embedding_dim))
        widths = (embedding_dim, *[width] * depth)
        self.encoder = nn.ModuleList(map(Sage, widths[:-1], widths[1:]))
        self.trunk = perceptron((width,) * depth)
        self.output = nn.Linear(width, size)

    def encode(self, dropped):
        embeddings = torch.where(dropped, self.propagation @ self.embeddings, self.embeddings)
        for i, layer in enumerate(self.encoder):
            embeddings = layer(F.relu(embeddings) if i else embeddings, self.propagation)
        return embeddings

    def generate(self, embeddings):
        return self.output(F.relu(self.trunk(embeddings)))

    def penalty(self, embeddings):
        """The graph generator's loss, in which the trunk's weights are constants."""
        hidden = embeddings
        for layer in self.trunk:
            if isinstance(layer, nn.Linear):
                hidden = F.linear(hidden, layer.weight.detach(), layer.bias.detach())
            else:
                hidden = layer(hidden)
        logits = hidden @ hidden.T / hidden.shape[1]
        losses = F.binary_cross_entropy_with_logits(
            logits, self.adjacency, weight=self.off_diagonal, reduction="sum"
        )
        return losses / (len(embeddings) * (len(embeddings) - 1))

    def forward(self, draws, uploads):
        """The objective, and the part of it whose minimum is 0."""
        embeddings = self.encode(draws.dropped)
        gap = (
            0.5 * (uploads - self.generate(embeddings[draws.ids])).square().sum() / len(uploads)
        )
        penalty = self.lambda_d * self.penalty(embeddings) if self.lambda_d else 0.0
        return gap + penalty, gap


class Generator:
    """The networks of all architectures, generated from shared weights.

    The weights are named as in JAX, joined by "/". Kernels of layers have PyTorch's layout, so
    the outputs of a type's network are in that order, see `recorded_rounds.export_weights`.
    """

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


def tensor(array) -> Tensor:
    """A copy of an array as a tensor on PyTorch's default device."""
    return torch.tensor(np.asarray(array))


def pixels(array) -> Tensor:
    """Images [..., H, W, C] as a tensor [..., C, H, W]."""
    return tensor(array).movedim(-1, -3).contiguous()
