"""FedBABU: clients train the body below a head that stays random, and fine-tune in the end.

Oh, Kim, Yun. FedBABU: Towards Enhanced Representation for Federated Image Classification.
ICLR 2022. https://arxiv.org/abs/2106.06042

    b_i = K_c steps of SGD on F_i(., h), from b
    b  <- sum_i n_i b_i / sum_i n_i
    P_i = steps of SGD on F_i(b, h), from (b, h)

The head h is that of the server's first model, and the same for all clients. G is (b, h), L is
(b_i, h), and P is G after fine-tuning of body and head (``tuning.part=whole``). Without it, P
would have a random head.

Departures: fixed numbers of steps, not epochs; ``tuning.epochs`` takes the paper's. Clients are
fine-tuned at every evaluation, and not once after the last round; the federation does not
change by it. Each message has the head too, which a client keeps; the upload is the body alone,
so that neither attacks nor noise reach the head.
"""

from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Client, ClientModel, Needs, Predictor
from graphfl_jax.trainers import Train

NEEDS = Needs(head=True)


@facts(needs=NEEDS, values={"tuning.part": "whole"})
def fedbabu(model: ClientModel, train: Train) -> Algorithm:
    """Builds FedBABU without its fine-tuning, which is ``tuning.part`` of a configuration.

    Server state and message are a model, the upload is its body, and the memory is the head.
    """
    server = averaging_server(model)

    def local(w, head, data, key):
        def of_body(body, batch, key):
            return model.objective({"body": body, "head": w["head"]}, batch, key)

        body, metrics = train(of_body, w["body"], data.train, key)
        return head, {"body": body}, metrics

    client = Client(
        model,
        local,
        enroll=lambda w, key: w["head"],
        deploy=lambda sent, head, data: Predictor({"head": head} | sent),
        untrained=lambda w, head, data: {"body": w["body"]},
    )
    return Algorithm(server, (client,), needs=NEEDS, averages=True).replacing(
        aggregate=lambda w, *round: w | server.aggregate(w, *round)
    )
