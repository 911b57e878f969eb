"""FedPer: the body of the model is shared, and every client keeps a head of its own.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.
https://arxiv.org/abs/1912.00818

    (b_i, h_i) <- K_c steps of SGD on F_i(b, h), from (b, h_i)
    b <- sum_i n_i b_i / sum_i n_i

The server sends and averages bodies b. A head h_i never leaves its client; it is first drawn at
random by the client. G and P are the server's body with the client's own head.

Departures: a fixed number of local steps, not epochs. In a round, a cohort of the clients
trains, in the paper all of them. A client that was never sampled is scored with its first head.
"""

from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Client, ClientModel, Local, Needs, Predictor
from graphfl_jax.trainers import Train

NEEDS = Needs(head=True)


@facts(needs=NEEDS)
def fedper(model: ClientModel, train: Train) -> Algorithm:
    """Builds FedPer. Server state, message and upload are a body; the memory is a head."""

    def local(body, head, data, key):
        start = {"body": body, "head": head}
        trained, metrics = train(model.objective, start, data.train, key)
        return trained["head"], trained["body"], metrics

    return shared_body(model, local)


def shared_body(model: ClientModel, local: Local) -> Algorithm:
    """A federation whose server averages bodies, and whose clients keep their heads.

    Args:
      model: of all clients.
      local: (body, head, data, key) -> (head, body, metrics).
    """
    client = Client(
        model,
        local,
        enroll=lambda body, key: model.init(key)["head"],
        deploy=lambda body, head, data: Predictor({"body": body, "head": head}),
    )
    return Algorithm(averaging_server(model), (client,), averages=True).replacing(
        init=lambda key, graph: model.init(key)["body"], needs=NEEDS
    )
