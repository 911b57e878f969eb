"""FedBN: FedAvg in which each client keeps the scales and biases of its normalisation layers.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021. https://arxiv.org/abs/2102.07623

    (w_i, g_i) <- K_c steps of SGD on F_i(w, g), from (w, g_i)
    w <- sum_i n_i w_i / sum_i n_i

g_i are the scales and biases of client i, by `parts.normalisation`, and w are all others. G and
P are the server's w with the client's g_i. With a model without such layers it is FedAvg, bit
for bit.

Before a client predicts, with any method, its model computes the statistics of batch
normalisation from the client's examples (`models.batch_statistics`). So FedAvg is half of FedBN
already, and the two differ only in scales and biases.

Departures: a fixed number of local steps, not epochs. Statistics are those of a client's
examples, not running means. Scales and biases start as the client model starts, at 1 and 0
or as pretrained. A client that was never sampled is scored with these.
"""

from graphfl_jax import parts
from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.core import Algorithm, Client, ClientModel, Predictor
from graphfl_jax.trainers import Train


def fedbn(model: ClientModel, train: Train) -> Algorithm:
    """Builds FedBN.

    Server state, message and upload are the parameters outside of normalisation layers, the
    memory of a client is those inside, each as `parts.split` leaves them.
    """

    def split(params):
        return parts.split(params, parts.normalisation)

    def local(shared, kept, data, key):
        start = parts.merge(kept, shared)
        params, metrics = train(model.objective, start, data.train, key)
        return *split(params), metrics

    client = Client(
        model,
        local,
        enroll=lambda shared, key: split(model.init(key))[0],
        deploy=lambda shared, kept, data: Predictor(parts.merge(kept, shared)),
    )
    return Algorithm(averaging_server(model), (client,), averages=True).replacing(
        init=lambda key, graph: split(model.init(key))[1]
    )
