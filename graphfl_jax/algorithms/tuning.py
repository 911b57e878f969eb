"""Fine-tuning: any method whose clients, at the end, train its predictor on their own data.

    P_i = the trained model after some steps of SGD on F_i, from the method's own P_i

"whole" trains all parameters; "head" trains the head and keeps the body. With FedAvg this is
the baseline FedAvg-finetune; Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared
Representations for Personalized Federated Learning, ICML 2021, tune the head for 10 epochs.

"new_head" trains a newly initialised head, U(+-1 / sqrt(fan_in)), on the unchanged body: the
defence Simple-Tuning of Qin, Yao, Chen, Li, Ding, Cheng. Revisiting Personalized Federated
Learning: Robustness Against Backdoor Attacks. KDD 2023. https://arxiv.org/abs/2302.01677

Departures: none in the training of the method itself: G, L and the server are the method's.
Clients tune on their training examples, which are clean for benign clients.
"""

import dataclasses
from typing import Annotated

import jax
import optax

from graphfl_jax.core import Algorithm
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Integer
from graphfl_jax.trainers import Trainer, epoch_trainer, sgd_trainer

# Parts of a client's model, each with what a tuned method's name ends with.
PARTS = {"whole": "-finetune", "head": "-finetune-head", "new_head": "-simple-tuning"}


def tuning_trainer(
    *,
    tuning_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer("client", rate="tuning_lr", meaning="Learning rate of fine-tuning."),
    ],
    batch_size: int,
    steps: Annotated[int, Integer("Steps of fine-tuning.")] = 50,
    epochs: Annotated[
        int, Integer("Epochs of fine-tuning, instead of tuning.steps; 0: none.", low=0)
    ] = 0,
) -> Trainer:
    """Builds the trainer of fine-tuning."""
    if epochs:
        return epoch_trainer(tuning_optimizer, epochs=epochs, batch_size=batch_size)
    return sgd_trainer(tuning_optimizer, steps=steps, batch_size=batch_size)


def finetune(algorithm: Algorithm, train: Trainer, *, tuning_part: str) -> Algorithm:
    """A method whose predictor is fine-tuned before it is scored at P.

    Args:
      algorithm: the method.
      train: the trainer of the fine-tuning; it may differ from the method's.
      tuning_part: one of `PARTS`.
    """
    clients = tuple(
        _finetune_client(client, train, tuning_part) for client in algorithm.clients
    )
    return dataclasses.replace(algorithm, clients=clients)


def _finetune_client(client, train, tuning_part):
    model = client.model

    def personalize(message, memory, data, key):
        key_own, key_tuning = jax.random.split(key)
        if client.personalize is None:
            predictor = client.deploy(message, memory, data)
        else:
            predictor = client.personalize(message, memory, data, key_own)
        params = predictor.params
        if tuning_part == "whole":
            params, _ = train(model.objective, params, data.train, key_tuning)
            return predictor._replace(params=params)

        def of_head(head, batch, key):
            return model.objective({"body": params["body"], "head": head}, batch, key)

        head = params["head"]
        if tuning_part == "new_head":
            key_head, key_tuning = jax.random.split(key_tuning)
            head = model.init(key_head)["head"]
        head, _ = train(of_head, head, data.train, key_tuning)
        return predictor._replace(params={"body": params["body"], "head": head})

    return dataclasses.replace(client, personalize=personalize)
