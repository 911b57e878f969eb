"""Fine-tuning: any method, whose clients at the end adapt what it gives them.

    P_i = the trained model after some steps of SGD on F_i, from the method's own P_i

"whole" trains all parameters, "head" the head alone and leaves the body as it was. Over FedAvg
this is the baseline FedAvg-finetune; Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared
Representations for Personalized Federated Learning, ICML 2021, tune the head for 10 epochs.

Departures: none of the method's own training: G, L and the server are the method's.
"""

import dataclasses

import jax

from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.local import Train

PARTS = ("whole", "head")


def finetuned(
    algorithm: Algorithm, model: ClientModel, train: Train, *, tuning_part: str
) -> Algorithm:
    """A method whose predictor, parameters of `model`, is fine-tuned before it is scored at P.

    Args:
      algorithm: the method.
      model: what its predictor is a model of.
      train: the trainer of the fine-tuning, which may differ from the method's.
      tuning_part: "whole" or "head".

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

        head, _ = train(of_head, params["head"], examples, key_tuning)
        return {"body": params["body"], "head": head}

    return dataclasses.replace(algorithm, personalize=personalize)
