"""Local training: every client alone, the baseline without a federation.

    theta_i <- K_c steps of SGD on F_i, from where client i's last round ended

Departures: none. A client trains only in the rounds for which it is drawn, so that every method
spends the same number of local steps.
"""

from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.trainers import Train


def local(model: ClientModel, train: Train) -> Algorithm:
    """Builds local training. Nothing is sent; a client's memory is its model."""

    def enroll(message, key):
        return model.init(key)

    def train_alone(message, theta, examples, key):
        theta, metrics = train(model.objective, theta, examples, key)
        return theta, (), metrics

    return Algorithm(
        init=lambda key, graph: (),
        download=lambda server, i: (),
        local=train_alone,
        aggregate=lambda server, cohort, uploads, key: server,
        predict=model.apply,
        enroll=enroll,
        deploy=lambda message, theta: theta,
        personalize=lambda message, theta, examples, key: theta,
    )
