"""What the configurations of Fashion-MNIST, CIFAR-10 and CIFAR-100 share.

The learning rates were not searched.
"""

from ml_collections import ConfigDict

from graphfl_jax.configs import base

METHODS = {name: {"client_lr": 0.05} for name in base.methods()}
SETTINGS = {
    "data.graph": "knn",
    "data.neighbours": 3,
    "model.name": "lenet",
    "cohort_size": 10,
    "rounds": 50,
    "eval_every": 5,
    "checkpoint_every": 10,
}


def configured(method: str, data: str, **settings) -> ConfigDict:
    """The configuration of a method on one of the data sets.

    Args:
      method: one of `base.methods`.
      data: the name of the data set.
      **settings: further settings by name, with __ for the dots.
    """
    own = {name.replace("__", "."): value for name, value in settings.items()}
    return base.configured(method, data, tuned=METHODS, settings=SETTINGS | own)
