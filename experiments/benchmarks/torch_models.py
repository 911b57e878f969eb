"""What `experiments.pytorch` trains, as modules: a perceptron, a GRU, a graph hypernetwork.

Imported only where PyTorch is installed.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphfl_jax.data import relations


class Forecaster(nn.Module):
    """A GRU as encoder, a GRU cell as decoder that reads its own forecasts."""

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
        """Forecasts [B, future] of x [B, past + future, F], from the encoder's state [B, H]."""
        past = x.shape[1] - self.future
        value, values = x[:, past - 1, :1], []
        for known in x[:, past:, 1:].unbind(1):
            h = self.decoder(torch.cat([value, known], dim=1), h)
            value = self.readout(h)
            values.append(value)
        return torch.cat(values, dim=1)


class Cell(nn.Module):
    """nn.GRUCell written out, with its parameters: torch.compile refuses nn.GRU, and vmap of
    a module that holds one has no rule for its backward."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, features))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden))

    def told(self, x):
        """What inputs [..., F] give to the gates [..., 3 H]."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def following(self, told, h):
        recalled = F.linear(h, self.weight_hh, self.bias_hh)
        told_gates, told_new = told.tensor_split([2 * h.shape[-1]], dim=-1)
        recalled_gates, recalled_new = recalled.tensor_split([2 * h.shape[-1]], dim=-1)
        r, z = torch.sigmoid(told_gates + recalled_gates).chunk(2, dim=-1)
        new = torch.tanh(told_new + r * recalled_new)
        return new + z * (h - new)

    def forward(self, x, h):
        return self.following(self.told(x), h)


class OpenForecaster(Forecaster):
    """`Forecaster` of written out cells; the same parameters in the same order."""

    def __init__(self, features: int, future: int, hidden: int):
        super().__init__(features, future, hidden)
        self.encoder, self.decoder = Cell(features, hidden), Cell(features, hidden)

    def forward(self, x):
        told = self.encoder.told(x[:, : x.shape[1] - self.future])
        h = torch.zeros_like(told[:, 0, : told.shape[-1] // 3])
        for now in told.unbind(1):
            h = self.encoder.following(now, h)
        return self.forecast(x, h)


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = []
    for fan_in, fan_out in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Sage(nn.Module):
    """A layer of GraphSAGE with the mean over neighbours."""

    def __init__(self, fan_in: int, fan_out: int):
        super().__init__()
        self.neighbours = nn.Linear(fan_in, fan_out)
        self.own = nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, embeddings, propagation):
        return self.neighbours(propagation @ embeddings) + self.own(embeddings)


class Hypernetwork(nn.Module):
    """Panacea's server: a graph encoder over all clients' codes, and a generator of models."""

    def __init__(self, graph, size: int, *, embedding_dim, width, depth, lambda_d):
        super().__init__()
        self.propagation = tensor(relations.propagation(graph, "sage"))  # [N, N]
        self.adjacency = adjacency = tensor(relations.adjacency(graph))  # [N, N]
        self.others = 1 - torch.eye(len(adjacency))
        self.lambda_d = lambda_d
        self.embeddings = nn.Parameter(torch.randn(len(adjacency), embedding_dim))
        widths = (embedding_dim, *[width] * depth)
        self.encoder = nn.ModuleList(map(Sage, widths[:-1], widths[1:]))
        self.trunk = perceptron((width,) * depth)
        self.output = nn.Linear(width, size)

    def encode(self, forgotten):
        embeddings = torch.where(forgotten, self.propagation @ self.embeddings, self.embeddings)
        for i, layer in enumerate(self.encoder):
            embeddings = layer(F.relu(embeddings) if i else embeddings, self.propagation)
        return embeddings

    def generate(self, embeddings):
        return self.output(F.relu(self.trunk(embeddings)))

    def penalty(self, embeddings):
        """The graph generator's loss, to which the trunk's weights are constants."""
        hidden = embeddings
        for layer in self.trunk:
            if isinstance(layer, nn.Linear):
                hidden = F.linear(hidden, layer.weight.detach(), layer.bias.detach())
            else:
                hidden = layer(hidden)
        logits = hidden @ hidden.T / hidden.shape[1]
        losses = F.binary_cross_entropy_with_logits(
            logits, self.adjacency, weight=self.others, reduction="sum"
        )
        return losses / (len(embeddings) * (len(embeddings) - 1))

    def forward(self, draws, uploads):
        """The objective, and the part of it whose least value is 0."""
        embeddings = self.encode(draws.forgotten)
        gap = (
            0.5 * (uploads - self.generate(embeddings[draws.ids])).square().sum() / len(uploads)
        )
        penalty = self.lambda_d * self.penalty(embeddings) if self.lambda_d else 0.0
        return gap + penalty, gap


def tensor(array) -> Tensor:
    return torch.from_numpy(np.array(array))
