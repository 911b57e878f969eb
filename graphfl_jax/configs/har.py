"""HAR: six activities from a smartphone's motion, 561 features, one client per person.

    graphfl run har
    graphfl run har:ditto --config.model.hidden=

Thirty persons; every client trains a perceptron with one hidden layer, or with an empty
model.hidden a linear model. The learning rates were not searched. Without the files, features
are simulated, see docs/guide/data.md.
Quick look: add --config.rounds=20.
"""

from graphfl_jax.configs import base

SETTINGS = base.CLIPPED | {
    "data.graph": "knn",
    "data.neighbours": 3,
    "model.hidden": (100,),
    "cohort_size": 10,
    "batch_size": 32,
    "local_steps": 10,
    "hparams.client_lr": 0.1,
    "rounds": 200,
}


def get_config(method="fedavg"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "har", settings=SETTINGS)
