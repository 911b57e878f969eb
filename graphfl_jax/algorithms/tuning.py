"""Fine-tuning: any method, whose clients at the end adapt what it gives them.

    P_i = the trained model after some steps of SGD on F_i, from the method's own P_i

"whole" trains all parameters, "head" the head alone and leaves the body as it was. Over FedAvg
this is the baseline FedAvg-finetune; Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared
Representations for Personalized Federated Learning, ICML 2021, tune the head for 10 epochs.

"new_head" trains a head that starts afresh, U(+-1 / sqrt(fan_in)) as models do, on the body as
it was: the defence Simple-Tuning of Qin, Yao, Chen, Li, Ding, Cheng. Revisiting Personalized
Federated Learning: Robustness Against Backdoor Attacks. KDD 2023.
https://arxiv.org/abs/2302.01677

Departures: none of the method's own training: G, L and the server are the method's. Clients
tune on the examples that they trained on, which those of honest clients are clean.
"""

import dataclasses

import jax

from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.trainers import Train

PARTS = ("whole", "head", "new_head")


def finetuned(
    algorithm: Algorithm, model: ClientModel, train: Train, *, tuning_part: str
) -> Algorithm:
    """A method whose predictor, parameters of `model`, is fine-tuned before it is scored at P.

    Args:
      algorithm: the method.
      model: what its predictor is a model of.
      train: the trainer of the fine-tuning, which may differ from the method's.
      tuning_part: one of `PARTS`.

    Raises:
      ValueError: an unknown part.
    """
    if tuning_part not in PARTS:
        raise ValueError(
            f"tuning.part={tuning_part!r} is unknown; choose from {', '.join(PARTS)}, "
            f"or leave it empty for no fine-tuning"
        )

    def personalize(message, client, examples, key):
        key_own, key_tuning = jax.random.split(key)
        params = algorithm.personalize(message, client, examples, key_own)
        if tuning_part == "whole":
            return train(model.objective, params, examples, key_tuning)[0]

        def of_head(head, batch):
            return model.objective({"body": params["body"], "head": head}, batch)

        head = params["head"]
        if tuning_part == "new_head":
            key_head, key_tuning = jax.random.split(key_tuning)
            head = model.init(key_head)["head"]
        head, _ = train(of_head, head, examples, key_tuning)
        return {"body": params["body"], "head": head}

    return dataclasses.replace(algorithm, personalize=personalize)
