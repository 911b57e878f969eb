"""Times rounds of FedAvg with LeNet in fluke 0.8.1, for the comparison on the page about speed.

Install it in an environment of its own: ``pip install fluke-fl==0.8.1``. The work is that of
`graphfl_round.py`: 10 of 20 clients with 500 random images each, one epoch in batches of 64,
SGD. Evaluations are turned off. Prints the seconds of a round, and those of the first round
from the start of this process.
"""

import statistics
import time

import psutil
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataContainer, DataSplitter
from fluke.evaluation import ClassificationEval
from torch import nn

CLIENTS, EXAMPLES, ROUNDS = 20, 500, 8


class LeNet(nn.Sequential):
    """The network of ``model.name=lenet`` for images of 28 x 28 x 1: 61,706 parameters."""

    def __init__(self):
        super().__init__(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )


class Clock:
    """An observer that notes the time at the start and at the end of every round."""

    def __init__(self):
        self.begun, self.seconds, self.first = 0.0, [], 0.0

    def start_round(self, round, global_model):
        self.begun = time.perf_counter()

    def end_round(self, round):
        self.seconds.append(time.perf_counter() - self.begun)
        self.first = self.first or time.time() - psutil.Process().create_time()

    def __getattr__(self, name):
        return lambda **event: None


def main():
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_eval_cfg(locals=False, server=False, pre_fit=False, post_fit=False)
    environment.set_evaluator(ClassificationEval(1, 10))
    images = torch.randn(CLIENTS * EXAMPLES, 1, 28, 28)
    labels = torch.randint(10, (len(images),))
    data = DataContainer(images, labels, images[:100], labels[:100], 10)
    settings = DDict(
        model=LeNet(),
        client=DDict(
            batch_size=64,
            local_epochs=1,
            loss=nn.CrossEntropyLoss,
            optimizer=DDict(name=torch.optim.SGD, lr=0.1),
            scheduler=DDict(name=torch.optim.lr_scheduler.StepLR, step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=True),
    )
    federation = FedAVG(CLIENTS, DataSplitter(data, "iid"), settings)
    clock = Clock()
    federation.attach(clock)
    federation.run(ROUNDS, 0.5)
    print(f"median {statistics.median(clock.seconds[1:]):.3f} s of a round")
    print(f"{clock.first:.1f} s from the start to the end of the first round")


if __name__ == "__main__":
    main()
