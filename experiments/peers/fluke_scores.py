"""Scores of methods of fluke 0.8.1 on the clients that clients.py wrote; see scored.py.

    /path/to/fluke/bin/python experiments/peers/fluke_scores.py DIR --seeds=5

The environment is that of fluke_round.py. Left out are methods whose code there does not
compute the equations of the paper: in `APFL` the models that are to be personal get no
gradient, `FedAMP` scores mixtures of models before they are trained, and `FedDyn` adds the
linear term with the opposite sign, times alpha. Left out are also `PFedMe`, `PerFedAVG` and
`FedProto`, whose settings differ, and `FedBN` and `FedNova`, which are FedAvg here.

Differences: FedBABU of fluke fine-tunes the bodies of the last local training. Here its
functions fine-tune the server's body, as the paper does. All clients have the same first head
and body.
"""

import argparse
from pathlib import Path

import fluke_round
import scored
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import (
    PersonalizedFL,
    ditto,
    fedala,
    fedavg,
    fedbabu,
    fedper,
    fedprox,
    fedrep,
    fedrod,
    lg_fedavg,
    moon,
    scaffold,
)
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.nets import EncoderHeadNet


class FedRep(fedrep.FedRep, PersonalizedFL):
    """FedRep whose clients get copies of a network: fluke's make theirs from its name."""


TUNING_RATE = 0.01  # of FedBABU; at 0.1, fine-tuning is unstable in both codes
RATES = {"scaffold": 0.03}  # where `scored.RATE` diverges in both codes
EPOCHS = {"local_epochs": 1}
# Those whose clients are given a model, and the part of it that the server has.
PERSONAL = {
    "ditto": "",  # the whole
    "fedper": "encoder",
    "fedrep": "encoder",
    "fedbabu": "encoder",
    "lgfedavg": "head",
}
METHODS = {  # class, and the settings of its clients
    "fedavg": (fedavg.FedAVG, EPOCHS),
    "fedprox": (fedprox.FedProx, EPOCHS | {"mu": 0.1}),
    "scaffold": (scaffold.SCAFFOLD, EPOCHS),
    "moon": (moon.MOON, EPOCHS | {"mu": 1.0, "tau": 0.5}),
    "fedper": (fedper.FedPer, EPOCHS),
    "fedrep": (FedRep, EPOCHS | {"tau": 1}),
    "lgfedavg": (lg_fedavg.LGFedAVG, EPOCHS),
    "fedrod": (fedrod.FedROD, EPOCHS),
    "ditto": (ditto.Ditto, EPOCHS | {"tau": 1, "lam": 0.1}),
    "fedbabu": (fedbabu.FedBABU, EPOCHS | {"mode": "full", "fine_tuning_epochs": 0}),
    "fedala": (fedala.FedALA, EPOCHS | {"ala_sample_size": 1.0, "eta": 1.0}),
}


def loaders(clients, part):
    return [
        FastDataLoader(*client[part], num_labels=10, batch_size=scored.BATCH, shuffle=True)
        for client in clients
    ]


def federation_of(method, clients):
    """The federation of fluke, before its first round."""
    layers = fluke_round.lenet()
    network = EncoderHeadNet(layers[:-1], layers[-1])
    kind, of_clients = METHODS[method]
    of_clients = DDict(
        batch_size=scored.BATCH,
        loss=torch.nn.CrossEntropyLoss,
        optimizer=DDict(name=torch.optim.SGD, lr=RATES.get(method, scored.RATE)),
        scheduler=DDict(name=torch.optim.lr_scheduler.StepLR, step_size=1, gamma=1.0),
        **of_clients,
    )
    if method in PERSONAL:
        of_clients.update(model=network)
    part = PERSONAL.get(method)
    sent = getattr(network, part) if part else network
    data = DummyDataContainer(
        loaders(clients, "train"), loaders(clients, "test"), None, num_classes=10
    )
    settings = DDict(model=sent, client=of_clients, server=DDict(weighted=True))
    return kind(len(clients), DataSplitter(data, "iid"), settings)


def model_at_p(client):
    """The model at P of a client, after fluke has sent it the model of the last round."""
    if isinstance(client, fedbabu.FedBABUClient):
        client.receive_model()
        client._optimizer_cfg.optimizer_cfg.update(lr=TUNING_RATE)
        client.hyper_params.update(fine_tuning_epochs=1)
        client.fine_tune()
    if isinstance(client, fedrod.FedRODClient):
        return fedrod.RODModel(client.model, client.inner_model)
    return client.local_model


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("folder", type=Path)
    flags.add_argument("--seeds", type=int, default=5)
    flags.add_argument("--methods", default=",".join(METHODS))
    flags = flags.parse_args()
    environment = FlukeENV()
    environment.set_eval_cfg(locals=False, server=False, pre_fit=False, post_fit=False)
    environment.set_evaluator(ClassificationEval(1, 10))
    for method in flags.methods.split(","):
        for seed in range(flags.seeds):
            environment.set_seed(seed)
            clients = scored.clients_of(flags.folder / f"{seed}.npz")
            federation = federation_of(method, clients)
            federation.run(scored.ROUNDS, 1.0)
            scores = [
                scored.accuracy(model_at_p(client), *examples["test"])
                for client, examples in zip(federation.clients, clients, strict=True)
            ]
            scored.show("fluke-fl", method, seed, scores)


if __name__ == "__main__":
    main()
