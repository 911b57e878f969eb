"""Times rounds of FedAvg in fluke 0.8.1; see measured.py for the works and the line.

Install it in a separate environment, with Python 3.11 and a PyTorch for CPUs:

    pip install torch==2.13.0 torchvision==0.28.0 fluke-fl==0.8.1

Differences: fluke computes clients one after the other. The data are random numbers. Its
clients train in epochs, so in w1 each has 128 examples for 25 epochs of two batches. The last
batch of an epoch of w2 has 52 images. Its evaluations are turned off.
"""

import importlib.util

import measured
import torch
from torch import nn


def declare_operators():
    """Makes fluke's import of torchvision possible beside a PyTorch for CPUs.

    The usual package of torchvision is built for CUDA. Beside a PyTorch for CPUs its operators
    are not loaded, and then its import fails at these two, which nothing here calls.
    """
    (folder,) = importlib.util.find_spec("torchvision").submodule_search_locations
    try:
        torch.ops.load_library(f"{folder}/_C.so")
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "() -> ()")


declare_operators()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataContainer, DataSplitter  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402


def perceptron():
    hidden = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(16, 6))


def lenet():
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    features += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    return nn.Sequential(*features, *head, nn.Linear(84, 10))


def examples_of_w1():
    return torch.randn(48 * 128, 6), torch.randn(48 * 128, 6)


def examples_of_w2():
    return torch.randn(20 * 500, 1, 28, 28), torch.randint(10, (20 * 500,))


WORKS = {  # network, loss, examples of all clients, and epochs
    "w1": (perceptron, nn.MSELoss, examples_of_w1, 25),
    "w2": (lenet, nn.CrossEntropyLoss, examples_of_w2, 1),
}


class Observer:
    """Calls the clock at the start and at the end of every round of fluke."""

    def __init__(self, rounds):
        self.rounds = rounds

    def start_round(self, round, global_model):
        self.rounds.begin()

    def end_round(self, round):
        self.rounds.end()

    def __getattr__(self, name):
        return lambda **event: None


def main():
    rounds = measured.Rounds(measured.parser().parse_args())
    network, loss, examples, epochs = WORKS[rounds.name]
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_eval_cfg(locals=False, server=False, pre_fit=False, post_fit=False)
    environment.set_evaluator(ClassificationEval(1, 10))
    x, y = examples()
    settings = DDict(
        model=network(),
        client=DDict(
            batch_size=measured.BATCH,
            local_epochs=epochs,
            loss=loss,
            optimizer=DDict(name=torch.optim.SGD, lr=measured.RATE),
            scheduler=DDict(name=torch.optim.lr_scheduler.StepLR, step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=True),
    )
    data = DataContainer(x, y, x[:100], y[:100], 10)
    federation = FedAVG(rounds.work.clients, DataSplitter(data, "iid"), settings)
    rounds.ready()
    federation.attach(Observer(rounds))
    share = (rounds.work.cohort + 0.5) / rounds.work.clients  # fluke rounds down
    federation.run(1 + rounds.timed, share)
    rounds.show("fluke-fl", sum(weight.numel() for weight in network().parameters()))


if __name__ == "__main__":
    main()
