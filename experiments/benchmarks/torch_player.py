"""The federations of `bench --against=torch` in idiomatic PyTorch.

It is imported only if PyTorch is installed. A `Player` plays rounds of FedAvg or Panacea, in
one of four variants that differ in the local training of a cohort:

    eager         client by client: a module, autograd, torch.optim
    compile       client by client, with torch.compile of the gradient of a step
    vmap          torch.func.vmap of the loss over stacked clients, and one backward pass
    vmap+compile  torch.compile of the gradients of stacked clients

In all variants, the server generates the models of a cohort in one batch. The variants with
"compile" also compile the gradient of the server. Models are sent as vectors in the order of
the module's parameters: those of M clients are theta [M, d].
"""

import functools

import numpy as np
import torch
from ml_collections import ConfigDict
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from experiments.benchmarks.recorded_rounds import LAYERED_MODEL, Draws
from experiments.benchmarks.torch_models import (
    IMAGE_MODELS,
    CellForecaster,
    Forecaster,
    Generator,
    Hypernetwork,
    perceptron,
    pixels,
    tensor,
)
from graphfl_jax.build import Experiment
from graphfl_jax.data import relations
from graphfl_jax.examples import Windows

CompileError = TorchDynamoException  # base class of the errors of torch.compile


class PolyakSGD(torch.optim.Optimizer):
    """Gradient descent with step size min(lr, value / ||gradient||^2)."""

    def __init__(self, parameters, lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            value = closure()
        for group in self.param_groups:
            gradients = [p.grad for p in group["params"]]
            square = nn.utils.get_total_norm(gradients) ** 2
            rate = torch.clamp(value / square, max=group["lr"])
            rate = torch.where(square > 0, rate, 0.0)  # a tensor: no device waits for the host
            for p in group["params"]:
                p.sub_(rate * p.grad)
        return value


CLIENT_OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": functools.partial(torch.optim.Adam, fused=True),  # its fastest implementation
}
SERVER_OPTIMIZERS = CLIENT_OPTIMIZERS | {"polyak_sgd": PolyakSGD}


class Clients:
    """The clients' data, their module, and the local training of a cohort in one variant."""

    def __init__(self, experiment: Experiment, config: ConfigDict, variant: str):
        federation = experiment.federation
        train = federation.data.train
        self.counts = tensor(train.count).long()
        self.loss = F.mse_loss
        if isinstance(train, Windows):
            self.series = tensor(train.series)
            self.window = torch.arange(train.past + train.future)
            self.past, features = train.past, train.series.shape[2]
            self.visible = torch.ones(train.past + train.future, features)
            self.visible[train.past :, 0] = 0
            inputs = (train.past + train.future, features)
        else:
            self.series, inputs = None, train.x.shape[2:]
            self.x, self.y = tensor(train.x), tensor(train.y)
            if federation.task == "classification":
                self.y, self.loss = self.y.long(), F.cross_entropy
            elif federation.labels:
                self.loss = F.binary_cross_entropy_with_logits
        if config.model.name in IMAGE_MODELS:
            self.x = pixels(train.x)  # [N, S, C, H, W]
            make, is_bytes = IMAGE_MODELS[config.model.name], self.x.dtype == torch.uint8
            shape = self.x.shape[2:]
            self.module = make(shape, federation.outputs, is_bytes, config.model)
        elif config.model.name == "gru":
            forecaster = Forecaster if variant == "eager" else CellForecaster
            self.module = forecaster(inputs[1], federation.outputs, *config.model.hidden)
        else:
            if self.series is None and self.x.dtype == torch.uint8:
                self.x = self.x.float() / 127.5 - 1
            widths = (int(np.prod(inputs)), *config.model.hidden, federation.outputs)
            self.module = nn.Sequential(nn.Flatten(), *perceptron(widths))
        self.names = [name for name, _ in self.module.named_parameters()]
        self.shapes = [p.shape for p in self.module.parameters()]
        self.size = sum(shape.numel() for shape in self.shapes)

        optimizer, lr = CLIENT_OPTIMIZERS[config.client_optimizer], experiment.hparams
        self.optimizer = lambda parameters: optimizer(parameters, lr["client_lr"])
        self.train, self.gradient = {
            "eager": (self.train_each, None),
            "compile": (self.train_each_by_gradient, _compile(grad_and_value(self.loss_of))),
            "vmap": (self.train_by_gradient, self.gradients_by_one_backward),
            "vmap+compile": (
                self.train_by_gradient,
                _compile(vmap(grad_and_value(self.loss_of))),
            ),
        }[variant]

    def batches(self, draws: Draws):
        """All batches of a round: x [K_c, M, B, ...], y [K_c, M, B, ...]."""
        ids, indices = draws.ids[:, None], draws.indices.transpose(0, 1)  # [M, 1], [K_c, M, B]
        if self.series is None:
            return self.x[ids, indices], self.y[ids, indices]
        windows = self.series[ids[..., None], indices[..., None] + self.window]
        return windows * self.visible, windows[..., self.past :, 0]

    def train_each(self, theta, x, y):
        """The uploads [M, d] and the mean loss of clients that receive theta [M, d]."""
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

    def train_each_by_gradient(self, theta, x, y):
        trained = [
            self.train_by_gradient(sent, x[:, m], y[:, m]) for m, sent in enumerate(theta)
        ]
        uploads, losses = zip(*trained, strict=True)
        return torch.stack(uploads), torch.stack(losses).mean()

    def train_by_gradient(self, theta, x, y):
        """As `train_each`, with one gradient for all clients, or for one, theta [d]."""
        theta, losses = theta.clone(), []
        optimizer = self.optimizer([theta])
        for x_k, y_k in zip(x, y, strict=True):
            theta.grad, loss = self.gradient(theta, x_k, y_k)
            optimizer.step()
            losses.append(loss)
        return theta, torch.stack(losses).mean()

    def gradients_by_one_backward(self, theta, x, y):
        # The loss of a client depends only on its own row, so the gradient of the sum holds
        # the gradients of all. It takes half the time of vmap over gradients.
        theta = theta.detach().requires_grad_()
        losses = vmap(self.loss_of)(theta, x, y)
        (gradient,) = torch.autograd.grad(losses.sum(), theta)
        return gradient, losses.detach()

    def loss_of(self, theta, x, y):
        parts = theta.split([shape.numel() for shape in self.shapes])
        shaped = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        weights = dict(zip(self.names, shaped, strict=True))
        return self.loss(functional_call(self.module, weights, (x,)), y)


class ServerOfWeights:
    """Weights by name."""

    def start(self, weights):
        self.current = weights

    def weights(self):
        return self.current


class FedAvgServer(ServerOfWeights):
    """One model, theta [d]."""

    def __init__(self, clients: Clients):
        self.counts = clients.counts
        self.start({"theta": torch.zeros(clients.size)})

    def download(self, draws):
        return self.current["theta"].expand(len(draws.ids), -1)

    def aggregate(self, draws, uploads):
        counts = self.counts[draws.ids].float()
        self.start({"theta": counts / counts.sum() @ uploads})


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
        self.steps, self.lr = config.algorithm.server_steps, experiment.hparams["server_lr"]
        self.make_optimizer = SERVER_OPTIMIZERS[config.server_optimizer]
        functional = grad_and_value(self.objective_of, has_aux=True)
        self.functional_gradient = _compile(functional) if compiled else None

    @torch.no_grad()
    def download(self, draws):
        return self.network.generate(self.network.encode(draws.dropped)[draws.ids])

    def aggregate(self, draws, uploads):
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
    """A federation in one variant."""

    def __init__(self, experiment: Experiment, config: ConfigDict, variant: str):
        self.config, self.hparams = config, experiment.hparams
        self.clients = Clients(experiment, config, variant)
        self.counts = self.clients.counts.tolist()
        self.groups = [(torch.arange(len(self.counts)), config.cohort_size)]
        if config.algorithm.name == "fedavg":
            self.server = FedAvgServer(self.clients)
        else:
            compiled = "compile" in variant
            self.server = PanaceaServer(self.clients, experiment, config, compiled)
        graph = experiment.federation.data.graph
        propagation = tensor(relations.propagation_array(graph, "sage"))
        self.has_neighbours = propagation.sum(dim=1, keepdim=True) > 0  # [N, 1]

    def play(self, draws: Draws) -> Tensor:
        """Plays a round and returns the mean loss of the clients' steps."""
        x, y = self.clients.batches(draws)
        uploads, loss = self.clients.train(self.server.download(draws), x, y)
        self.server.aggregate(draws, uploads)
        return loss

    def draw(self) -> Draws:
        """The draws of a round, by PyTorch's generator."""
        ids = torch.cat(
            [
                group[torch.randperm(len(group))[:size].sort().values]
                for group, size in self.groups
            ]
        )
        shape = (self.config.local_steps, self.config.batch_size)
        indices = torch.stack([torch.randint(self.counts[i], shape) for i in ids.tolist()])
        return Draws(ids, indices, self.draw_dropped())

    def draw_dropped(self):
        dropout = self.hparams.get("embedding_dropout", 0.0)
        return (torch.rand(len(self.counts), 1) < dropout) & self.has_neighbours

    def start(self, weights: dict[str, np.ndarray]) -> None:
        """Starts the federation again, with these weights of the server."""
        self.server.start({name: tensor(leaf) for name, leaf in weights.items()})

    def weights(self) -> dict[str, np.ndarray]:
        """The current weights of the server."""
        current = self.server.weights()
        return {name: leaf.detach().cpu().numpy().copy() for name, leaf in current.items()}


class LayeredPlayer(Player):
    """FLHA-GHN with several architectures.

    Client by client, the hypernetwork generates the network of the client's architecture in
    every local step, and torch.optim trains the hypernetwork's weights.
    """

    def __init__(self, experiment: Experiment, config: ConfigDict, variant: str):
        algorithm = experiment.build(experiment.hparams, 0)
        self.architectures = [client.model.architecture for client in algorithm.clients]
        self.groups = [
            (tensor(group.ids).long(), group.cohort_size) for group in experiment.groups
        ]
        self.generator = Generator(self.architectures, config.algorithm)
        self.server = ServerOfWeights()
        train = experiment.federation.data.train
        self.x = pixels(train.x)  # [N, S, C, H, W]
        if self.x.dtype == torch.uint8:
            self.x = self.x.float() / 127.5 - 1
        self.y, self.counts = tensor(train.y).long(), np.asarray(train.count).tolist()
        self.config, self.hparams = config, experiment.hparams

    def play(self, draws: Draws) -> Tensor:
        number = {int(i): k for k, (ids, _) in enumerate(self.groups) for i in ids}
        uploads, losses = zip(
            *(
                self.train(i, number[i], indices)
                for i, indices in zip(draws.ids.tolist(), draws.indices, strict=True)
            ),
            strict=True,
        )
        self.server.start(
            {name: torch.stack([each[name] for each in uploads]).mean(0) for name in uploads[0]}
        )
        return torch.stack(losses).mean()

    def train(self, i: int, k: int, indices: Tensor):
        """The weights after the steps of client i with architecture k, and its mean loss."""
        weights = {
            name: leaf.clone().requires_grad_() for name, leaf in self.server.weights().items()
        }
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
            nn.utils.clip_grad_norm_(every, rates["client_clip"])
            optimizer.step()
            losses.append(loss.detach())
        trained = {name: leaf.detach() for name, leaf in weights.items()}
        return trained, torch.stack(losses).mean()

    def draw_dropped(self):
        return None


def player_of(experiment: Experiment, config: ConfigDict, variant: str) -> Player:
    """The player of a configuration."""
    kind = LayeredPlayer if config.model.name == LAYERED_MODEL else Player
    return kind(experiment, config, variant)


def prepare(on_gpu: bool) -> None:
    """Sets the default device of PyTorch; its products and convolutions are in float32."""
    torch.set_default_device("cuda" if on_gpu else "cpu")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def wait() -> None:
    """Returns when the device has computed all that it was given."""
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def environment() -> dict:
    """The version of PyTorch, its device, and its number of threads."""
    device = torch.get_default_device().type
    return {"version": torch.__version__, "device": device, "threads": torch.get_num_threads()}


def as_tensors(draws: Draws) -> Draws:
    """The draws of a round as tensors."""
    ids, indices, dropped = map(tensor, draws)
    return Draws(ids.long(), indices.long(), dropped.bool())


def _compile(function):
    # In a lambda, because torch.compile does not trace the wrappers of torch.func themselves.
    return torch.compile(lambda *arguments: function(*arguments), fullgraph=True)
