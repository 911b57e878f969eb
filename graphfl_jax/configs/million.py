"""A million clients: a regression each, of which near ones in the unit square are alike.

    graphfl run million
    graphfl run million:ditto

The data are those of `geometric`, with as many clients as data.clients says. Of them, 1,000
are scored.
Quick look: add --config.data.clients=10000 --config.rounds=40.
"""

from graphfl_jax.configs import base

SETTINGS = {
    "rounds": 200,
    "eval_every": 20,
    "data.storage": "host",
    "eval.clients": 1000,
    "cohort_size": 10,
    "hparams.client_lr": 0.1,
}


def get_config(method="fedavg"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "geometric", settings=SETTINGS)
