"""What the configurations of Fashion-MNIST, CIFAR-10, CIFAR-100 and ChestX-ray14 share.

The learning rates are those of the searches of Fashion-MNIST and CIFAR-10, see
docs/results/rates.md.
"""

from ml_collections import ConfigDict

from graphfl_jax.configs import base

ROUNDS = 50
# Of the papers of pFedHN and FLHA-GHN, in place of `CLIPPED`.
MOMENTUM = {"client_momentum": 0.9, "client_weight_decay": 5e-5, "client_clip": 50.0}
WITH_MOMENTUM = dict.fromkeys(("pfedhn", "pfedhn-het", *base.needing("layers")), MOMENTUM)
# These variants set what their paper prints.
WITH_MOMENTUM |= {"flha-ghn-paper": {}, "flha-ghn-no-gnn-paper": {}}
# The network and the epochs of the paper of pFedGAT.
PAPER = dict.fromkeys(
    ("pfedgat-paper", "pfedgat-direct-paper"), {"model.name": "conv3", "local_epochs": 5}
)
# Without clipped gradients, training diverges on clients of two classes. The default of
# `new_client_lr`, chosen on TPT-48, makes new clients of pFedHN worse in each round.
SETTINGS = base.CLIPPED | {
    "data.graph": "knn",
    "data.neighbours": 1,
    "model.name": "lenet",
    "cohort_size": 10,
    "hparams.client_lr": 0.4,
    "hparams.new_client_lr": 1.0,
    "rounds": ROUNDS,
    "eval_every": 5,
    "checkpoint_every": 10,
}


def configure(method: str, data: str, *, rates: str, **settings) -> ConfigDict:
    """The configuration of a method on one of the data sets.

    Names of further settings have __ for the dots.

    Args:
      rates: the data set in whose search the rates were chosen.
    """
    tuned = base.searched(rates, otherwise=WITH_MOMENTUM)
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    dotted |= PAPER.get(method, {})
    return base.configure(method, data, tuned=tuned, settings=SETTINGS | dotted)
