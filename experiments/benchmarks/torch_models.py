"""The PyTorch modules that `torch_player` trains: perceptron, GRU, graph hypernetwork.

It is imported only if PyTorch is installed.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphfl_jax.data import relations


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


def tensor(array) -> Tensor:
    """A copy of an array as a tensor."""
    return torch.from_numpy(np.array(array))
