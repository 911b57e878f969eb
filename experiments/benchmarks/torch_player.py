"""The federations of `bench --against=torch` in PyTorch, written as its users write them.

Imported only where PyTorch is installed. A `Player` plays whole rounds of FedAvg or Panacea, in
one of four variants that differ in how a cohort trains at home:

    eager         client by client: a module, autograd, torch.optim
    compile       client by client, the gradient of a step under torch.compile
    vmap          torch.func.vmap of the loss over stacked clients, one backward for all of them
    vmap+compile  torch.compile of the gradients of stacked clients

What a server generates and how it learns is batched over the cohort in all of them; the two
that compile compile its gradient too. Models travel as vectors in the order of a module's
parameters: M clients are theta [M, d].
"""

from typing import NamedTuple

import numpy as np
import torch
from ml_collections import ConfigDict
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from experiments.benchmarks.torch_models import (
    Forecaster,
    Hypernetwork,
    OpenForecaster,
    perceptron,
    tensor,
)
from graphfl_jax.build import Experiment
from graphfl_jax.core import Windows
from graphfl_jax.data import relations

CompileError = TorchDynamoException  # what torch.compile raises, of any kind


class Draws(NamedTuple):
    """What a round leaves to chance."""

    ids: Tensor  # [M] the cohort, ascending
    indices: Tensor  # [M, K_c, B] examples of each client's steps
    forgotten: Tensor  # [N, 1] bool, whose code the round takes from its neighbours


class PolyakSGD(torch.optim.Optimizer):
    """Gradient descent by lr or by value / ||gradient||^2, the lesser."""

    def __init__(self, parameters, lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            value = closure()
        for group in self.param_groups:
            gradients = [p.grad for p in group["params"]]
            square = float(nn.utils.get_total_norm(gradients)) ** 2
            rate = min(float(value) / square, group["lr"]) if square > 0 else 0.0
            for p in group["params"]:
                p.add_(p.grad, alpha=-rate)
        return value


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr)


def adam(parameters, lr):
    return torch.optim.Adam(parameters, lr, fused=True)  # of three forms the fastest here


CLIENT_OPTIMIZERS = {"sgd": sgd, "adam": adam}
SERVER_OPTIMIZERS = CLIENT_OPTIMIZERS | {"polyak_sgd": PolyakSGD}


class Clients:
    """The clients' data, their module, and how a cohort of them trains in one variant."""

    def __init__(self, experiment: Experiment, config: ConfigDict, variant: str):
        federation = experiment.federation
        train = federation.data.train
        self.counts = tensor(train.count).long()
        self.loss = F.mse_loss
        if isinstance(train, Windows):
            self.series = tensor(train.series)
            self.window = torch.arange(train.past + train.future)
            self.past, features = train.past, train.series.shape[2]
            self.told = torch.ones(train.past + train.future, features)
            self.told[train.past :, 0] = 0
            inputs = (train.past + train.future, features)
        else:
            self.series, inputs = None, train.x.shape[2:]
            self.x, self.y = tensor(train.x), tensor(train.y)
            if federation.task == "classification":
                self.y, self.loss = self.y.long(), F.cross_entropy
        if config.model.name == "gru":
            forecaster = Forecaster if variant == "eager" else OpenForecaster
            self.module = forecaster(inputs[1], federation.outputs, *config.model.hidden)
        else:
            widths = (int(np.prod(inputs)), *config.model.hidden, federation.outputs)
            self.module = nn.Sequential(nn.Flatten(), *perceptron(widths))
        self.names = [name for name, _ in self.module.named_parameters()]
        self.shapes = [p.shape for p in self.module.parameters()]
        self.size = sum(shape.numel() for shape in self.shapes)

        optimizer, lr = CLIENT_OPTIMIZERS[config.client_optimizer], experiment.hparams
        self.optimizer = lambda parameters: optimizer(parameters, lr["client_lr"])
        self.train, self.gradient = {
            "eager": (self.in_turn, None),
            "compile": (self.in_turn_by_gradient, _compiled(grad_and_value(self.loss_of))),
            "vmap": (self.run_synchronized, self.gradients_by_one_backward),
            "vmap+compile": (
                self.run_synchronized,
                _compiled(vmap(grad_and_value(self.loss_of))),
            ),
        }[variant]

    def batches(self, draws: Draws):
        """All batches of a round: x [K_c, M, B, ...] and y [K_c, M, B, ...]."""
        ids, indices = draws.ids[:, None], draws.indices.transpose(0, 1)  # [M, 1], [K_c, M, B]
        if self.series is None:
            return self.x[ids, indices], self.y[ids, indices]
        windows = self.series[ids[..., None], indices[..., None] + self.window]
        return windows * self.told, windows[..., self.past :, 0]

    def in_turn(self, theta, x, y):
        """Uploads [M, d] and the mean loss of clients who are sent theta [M, d]."""
        uploads, losses = [], []
        for m, sent in enumerate(theta):
            vector_to_parameters(sent.clone(), self.module.parameters())
            optimizer = self.optimizer(self.module.parameters())
            for x_k, y_k in zip(x[:, m], y[:, m], strict=True):
                optimizer.zero_grad()
                loss = self.loss(self.module(x_k), y_k)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            uploads.append(parameters_to_vector(self.module.parameters()).detach())
        return torch.stack(uploads), torch.stack(losses).mean()

    def in_turn_by_gradient(self, theta, x, y):
        trained = [
            self.run_synchronized(sent, x[:, m], y[:, m]) for m, sent in enumerate(theta)
        ]
        uploads, losses = zip(*trained, strict=True)
        return torch.stack(uploads), torch.stack(losses).mean()

    def run_synchronized(self, theta, x, y):
        """`in_turn`, by a gradient of all clients at once; or of one, theta [d]."""
        theta, losses = theta.clone(), []
        optimizer = self.optimizer([theta])
        for x_k, y_k in zip(x, y, strict=True):
            theta.grad, loss = self.gradient(theta, x_k, y_k)
            optimizer.step()
            losses.append(loss)
        return theta, torch.stack(losses).mean()

    def gradients_by_one_backward(self, theta, x, y):
        # A client's loss depends on its own row alone; half the time of vmap over gradients.
        theta = theta.detach().requires_grad_()
        losses = vmap(self.loss_of)(theta, x, y)
        (gradient,) = torch.autograd.grad(losses.sum(), theta)
        return gradient, losses.detach()

    def loss_of(self, theta, x, y):
        parts = theta.split([shape.numel() for shape in self.shapes])
        shaped = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        weights = dict(zip(self.names, shaped, strict=True))
        return self.loss(functional_call(self.module, weights, (x,)), y)


class FedAvgServer:
    """One model, theta [d]."""

    def __init__(self, clients: Clients):
        self.counts = clients.counts
        self.theta = torch.zeros(clients.size)

    def send(self, draws):
        return self.theta.expand(len(draws.ids), -1)

    def learn(self, draws, uploads):
        counts = self.counts[draws.ids].float()
        self.theta = counts / counts.sum() @ uploads

    def start(self, weights):
        self.theta = weights["theta"]

    def weights(self):
        return {"theta": self.theta}


class PanaceaServer:
    """A hypernetwork and its optimiser."""

    def __init__(self, clients: Clients, experiment: Experiment, config: ConfigDict, compiled):
        sizes = {name: config.algorithm[name] for name in ("embedding_dim", "width", "depth")}
        self.network = Hypernetwork(
            experiment.federation.data.graph,
            clients.size,
            lambda_d=experiment.hparams["lambda_d"],
            **sizes,
        )
        self.steps, self.lr = config.server_steps, experiment.hparams["server_lr"]
        self.make_optimizer = SERVER_OPTIMIZERS[config.server_optimizer]
        functional = grad_and_value(self.objective_of, has_aux=True)
        self.functional_gradient = _compiled(functional) if compiled else None

    @torch.no_grad()
    def send(self, draws):
        return self.network.generate(self.network.encode(draws.forgotten)[draws.ids])

    def learn(self, draws, uploads):
        def closure():
            if self.functional_gradient is None:
                self.optimizer.zero_grad()
                objective, gap = self.network(draws, uploads)
                objective.backward()
                return gap
            weights = {name: p.detach() for name, p in self.network.named_parameters()}
            gradients, (_, gap) = self.functional_gradient(weights, draws, uploads)
            for name, p in self.network.named_parameters():
                p.grad = gradients[name]
            return gap

        for _ in range(self.steps):
            self.optimizer.step(closure)

    def objective_of(self, weights, draws, uploads):
        return functional_call(self.network, weights, (draws, uploads))

    def start(self, weights):
        self.network.load_state_dict(weights)
        self.optimizer = self.make_optimizer(self.network.parameters(), self.lr)

    def weights(self):
        return dict(self.network.named_parameters())


class Player:
    """A federation in one variant, at its first round."""

    def __init__(self, experiment: Experiment, config: ConfigDict, variant: str):
        self.config, self.dropout = config, experiment.hparams.get("embedding_dropout", 0.0)
        self.clients = Clients(experiment, config, variant)
        if config.algorithm.name == "fedavg":
            self.server = FedAvgServer(self.clients)
        else:
            compiled = "compile" in variant
            self.server = PanaceaServer(self.clients, experiment, config, compiled)
        graph = experiment.federation.data.graph
        heard = tensor(relations.propagation(graph, "sage")).sum(dim=1, keepdim=True)
        self.related = heard > 0

    def play(self, draws: Draws) -> Tensor:
        """Plays a round, and returns the mean loss of the clients' steps."""
        x, y = self.clients.batches(draws)
        uploads, loss = self.clients.train(self.server.send(draws), x, y)
        self.server.learn(draws, uploads)
        return loss

    def draw(self) -> Draws:
        """Draws a round by PyTorch's own generator."""
        counts, size = self.clients.counts, self.config.cohort_size
        ids = torch.randperm(len(counts))[:size].sort().values
        shape = (self.config.local_steps, self.config.batch_size)
        indices = torch.stack([torch.randint(int(counts[i]), shape) for i in ids])
        forgotten = (torch.rand(len(counts), 1) < self.dropout) & self.related
        return Draws(ids, indices, forgotten)

    def start(self, weights: dict[str, np.ndarray]) -> None:
        """Goes to the first round, in which the server knows `weights`."""
        self.server.start({name: tensor(leaf) for name, leaf in weights.items()})

    def weights(self) -> dict[str, np.ndarray]:
        """What the server knows now."""
        known = self.server.weights()
        return {name: leaf.detach().numpy().copy() for name, leaf in known.items()}


def environment() -> dict:
    """The version of PyTorch, and its threads."""
    return {"version": torch.__version__, "threads": torch.get_num_threads()}


def drawn(ids, indices, forgotten) -> Draws:
    """Draws from arrays."""
    return Draws(tensor(ids).long(), tensor(indices).long(), tensor(forgotten).bool())


def _compiled(function):
    # A lambda, since torch.compile does not look into the wrappers of torch.func themselves.
    return torch.compile(lambda *given: function(*given), fullgraph=True)
