"""Fashion-MNIST divided among twelve related clients with networks of two architectures.

    graphfl run two_networks
    graphfl run two_networks:fedavg \\
        --config.model.architectures=plain4

Half of the clients have five of the classes, and the others the other five. Every client has 50
training images of 8 pixels, and is related to the three clients with the most similar data. The
networks are plain4 and plain7 in turn, with 4 channels in the first layer. With a single
architecture, every method can be chosen.
Without the files, images are simulated, see docs/guide/data.md.
Quick look: add --config.rounds=5.
"""

from graphfl_jax.configs import base
from graphfl_jax.declarations import NOTHING

SETTINGS = {
    "data.image_size": 8,
    "data.clients": 12,
    "data.partition": "pathological",
    "data.classes_per_client": 5,
    "data.cap": 50,
    "data.graph": "knn",
    "data.neighbours": 3,
    "model.name": "architectures",
    "model.architectures": ("plain4", "plain7"),
    "model.width": 4,
    "cohort_size": 12,
    "batch_size": 16,
    "client_schedule": "cosine",
    "local_steps": 5,
    "rounds": 120,
    "hparams.client_lr": 0.1,
    "algorithm.step_per_client": True,
    "eval_every": 20,
    "checkpoint_every": 20,
}


def get_config(method="panacea-flha"):
    """The configuration of a method of `base.methods`."""
    tuned = base.searched("two_networks", otherwise=NOTHING)
    return base.configure(method, "fashion_mnist", tuned=tuned, settings=SETTINGS)
