"""LG-FedAvg: bodies of any architecture stay with their clients, and one head is averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think Locally, Act Globally:
Federated Learning with Local and Global Representations. 2020. https://arxiv.org/abs/2001.01523

    (b_i, h_i) <- K_c steps of SGD on F_i(b, h), from (b_i, h)
    h <- sum_i n_i h_i / sum_i n_i

The server sends and averages heads h, which must have one shape in all architectures. A body
b_i never leaves its client; it is first drawn at random by the client. G and P are the client's
own body with the server's head.

Departures: a fixed number of local steps, not epochs. Bodies start as each client draws them;
the authors' code starts from a model that FedAvg has trained. The paper's other losses on
local representations, such as adversarial ones, are left out, and so is its ensemble for
clients that have not trained. A client that was never sampled is scored with its first body.
"""

import jax

from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Client, ClientModel, Needs, Predictor
from graphfl_jax.trainers import Train

NEEDS = Needs(head=True)


@facts(needs=NEEDS)
def lgfedavg(
    models: tuple[ClientModel, ...], train: Train, *, unseen: tuple[ClientModel, ...] = ()
) -> Algorithm:
    """Builds LG-FedAvg. Server state, message and upload are a head; the memory is a body.

    Args:
      models: of each architecture.
      train: trains body and head together.
      unseen: of the architectures that only new clients have.

    Raises:
      ValueError: the architectures have heads of different shapes.
    """
    every = (*models, *unseen)
    check_heads("lgfedavg", every)

    def client(model):
        def local(head, body, data, key):
            start = {"body": body, "head": head}
            trained, metrics = train(model.objective, start, data.train, key)
            return trained["body"], trained["head"], metrics

        return Client(
            model,
            local,
            enroll=lambda head, key: model.init(key)["body"],
            deploy=lambda head, body, data: Predictor({"body": body, "head": head}),
        )

    first = models[0]
    clients = tuple(map(client, every))
    return Algorithm(averaging_server(first), clients, averages=True).replacing(
        init=lambda key, graph: first.init(key)["head"], needs=NEEDS
    )


def check_heads(method: str, models: tuple[ClientModel, ...]) -> None:
    """Checks that the heads of all architectures have parameters of equal names and shapes.

    Args:
      method: name of the method, for the error.
      models: of each architecture.

    Raises:
      ValueError: they have not.
    """
    heads = [jax.eval_shape(model.init, jax.random.key(0))["head"] for model in models]
    if any(head != heads[0] for head in heads):
        shapes = [
            " and ".join("x".join(map(str, leaf.shape)) for leaf in jax.tree.leaves(head))
            for head in heads
        ]
        raise ValueError(
            f"algorithm.name={method!r} needs heads of one shape, and those of the "
            f"architectures have {', '.join(shapes)}; choose architectures with equal "
            f"features, or set --config.algorithm.name=feddistill"
        )
