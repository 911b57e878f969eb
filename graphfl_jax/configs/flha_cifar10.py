"""CIFAR-10 divided among four clients with networks of different architectures.

    graphfl run flha_cifar10
    graphfl run flha_cifar10:fedavg \\
        --config.model.architectures=arch0

By default, the clients have arch0 to arch3 at an eighth of their channels, images of 16
pixels and 2,000 examples each, for a machine without an accelerator. The networks of the
paper, see graphfl_jax/models/architectures.py, have --config.model.width=64,
--config.data.image_size=32 and --config.data.cap=0; flha-ghn-paper has these, and 1000 rounds
of an epoch. With a single architecture, every method can be chosen: the second command is the
upper bound of the paper. Without the files, images are simulated, see docs/guide/data.md.
Quick look: add --config.data.cap=200 --config.rounds=5 --config.local_steps=5.
"""

from graphfl_jax.configs import base
from graphfl_jax.configs.image_sets import MOMENTUM

# Floats that were not searched. A method without a search has a client_lr of 0.05.
METHODS = {"pfedhn-het": MOMENTUM}
# The sizes of the paper, in which a round is an epoch.
PAPER = dict.fromkeys(
    ("flha-ghn-paper", "flha-ghn-no-gnn-paper"),
    {
        "data.image_size": 32,
        "data.cap": 0,
        "model.width": 64,
        "rounds": 1000,
        "local_epochs": 1,
        "eval_every": 50,
    },
)
# It needs relations, here those of the most similar data.
RELATED = {"panacea-flha": {"data.graph": "knn", "data.neighbours": 3}}
SETTINGS = {
    "data.image_size": 16,
    "data.clients": 4,
    "data.partition": "iid",
    "data.cap": 2000,
    "model.name": "architectures",
    "model.width": 8,
    "cohort_size": 4,
    "rounds": 40,
    "hparams.client_lr": 0.05,
    "client_schedule": "cosine",
    "local_steps": 25,
    "eval_every": 10,
    "checkpoint_every": 10,
}


def get_config(method="flha-ghn"):
    """The configuration of a method of `base.methods`."""
    settings = SETTINGS | (PAPER | RELATED).get(method, {})
    tuned = base.searched("flha_cifar10", otherwise=METHODS)
    return base.configure(method, "cifar10", tuned=tuned, settings=settings)
