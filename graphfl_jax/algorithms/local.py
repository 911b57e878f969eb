"""Local training: every client trains alone. The baseline without a federation.

    theta_i <- K_c steps of SGD on F_i, from the last theta_i

Departures: none. A client trains only in the rounds for which it is sampled, so that all
methods take the same number of local steps.
"""

from graphfl_jax.core import Algorithm, Client, ClientModel, Predictor, Server
from graphfl_jax.trainers import Train


def local(
    models: tuple[ClientModel, ...], train: Train, *, unseen: tuple[ClientModel, ...] = ()
) -> Algorithm:
    """Builds local training. Nothing is sent; the memory of a client is its model.

    Args:
      models: of each architecture.
      train: trains the whole model.
      unseen: of the architectures that only new clients have.
    """
    server = Server(
        init=lambda key, graph: (),
        download=lambda server, group, i: (),
        aggregate=lambda server, cohorts, uploads, key: server,
    )
    return Algorithm(server, tuple(_lone_client(model, train) for model in (*models, *unseen)))


def _lone_client(model, train):
    """A client that trains alone."""

    def train_alone(message, theta, data, key):
        theta, metrics = train(model.objective, theta, data.train, key)
        return theta, (), metrics

    return Client(
        model,
        local=train_alone,
        enroll=lambda message, key: model.init(key),
        deploy=lambda message, theta, data: Predictor(theta),
        personalize=lambda message, theta, data, key: Predictor(theta),
    )
