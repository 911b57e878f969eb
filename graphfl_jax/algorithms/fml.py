"""FML: a private model of any architecture and a small shared model teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu. Federated Mutual Learning. 2020.
https://arxiv.org/abs/2006.16765

Client i has a private model theta_i with probabilities p(x), and trains a copy w_i of the
server's model w, with probabilities q(x), called meme in the paper. Both take K_c steps of SGD
on the same batches:

    theta_i <- alpha CE(p, y) + (1 - alpha) KL(q || p), from the last theta_i
    w_i     <- beta  CE(q, y) + (1 - beta)  KL(p || q), from w
    w       <- sum_i n_i w_i / sum_i n_i

In each line, the other model's probabilities are constants. The shared model is of the
architecture with the fewest parameters among those of the federation.

G, L and P are the client's private model. The shared model is not scored.

Departures: a fixed number of local steps, not epochs. One step on the sum of both objectives
changes both models; optimisers that combine all parameters, such as one that clips the
gradient, see both. alpha and beta do not change in a run. The paper chooses the shared
architecture freely.
"""

import dataclasses
from typing import Annotated

import jax
import optax

from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Needs, Predictor
from graphfl_jax.memory import bytes_of
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train

NEEDS = Needs(labels=True)


@facts(needs=NEEDS)
def fml(
    models: tuple[ClientModel, ...],
    train: Train,
    *,
    unseen: tuple[ClientModel, ...] = (),
    fml_alpha: Annotated[
        Array,
        Real(
            "Weight alpha of the labels for FML's private models; 1 - alpha is that of the "
            "shared model's predictions.",
            high=1.0,
        ),
    ] = 0.5,
    fml_beta: Annotated[
        Array,
        Real(
            "Weight beta of the labels for FML's shared model; 1 - beta is that of the private "
            "models' predictions.",
            high=1.0,
        ),
    ] = 0.5,
) -> Algorithm:
    """Builds FML. Server state, message and upload are the shared model.

    The memory of a client is its private model.

    Args:
      models: of each architecture; their outputs are logits.
      train: trains both models together.
      unseen: of the architectures that only new clients have.
      fml_alpha: alpha; 1 trains private models alone.
      fml_beta: beta; 1 trains the shared model by FedAvg.
    """
    shared = min(
        models, key=lambda model: bytes_of(jax.eval_shape(model.init, jax.random.key(0)))
    )

    def client(model):
        def outputs_of_both(params, batch, key):
            return (
                model.forward(params["private"], batch, key),
                shared.forward(params["shared"], batch, key),
            )

        def mutual(outputs, y):
            private, common = outputs
            of_private = fml_alpha * model.task.loss(private, y)
            of_private = of_private + (1.0 - fml_alpha) * divergence(common, private)
            of_meme = fml_beta * model.task.loss(common, y)
            return of_private + of_meme + (1.0 - fml_beta) * divergence(private, common)

        both = dataclasses.replace(
            model, task=model.task._replace(loss=mutual), train_forward=outputs_of_both
        )

        def local(w, theta, data, key):
            start = {"private": theta, "shared": w}
            trained, metrics = train(both.objective, start, data.train, key)
            return trained["private"], trained["shared"], metrics

        return Client(
            model,
            local,
            enroll=lambda w, key: model.init(key),
            deploy=lambda w, theta, data: Predictor(theta),
        )

    return Algorithm(
        averaging_server(shared),
        tuple(map(client, (*models, *unseen))),
        needs=NEEDS,
        averages=True,
    )


def divergence(target: Array, outputs: Array) -> Array:
    """KL(softmax(target) || softmax(outputs)) of logits [B, C]: [B]. The target is constant."""
    constant = jax.lax.stop_gradient(jax.nn.log_softmax(target))
    return optax.losses.kl_divergence_with_log_targets(jax.nn.log_softmax(outputs), constant)
