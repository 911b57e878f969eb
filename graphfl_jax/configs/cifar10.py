"""CIFAR-10: ten kinds of things, colour images of 32 pixels, divided among ten clients.

    graphfl run cifar10
    graphfl run cifar10:ditto \\
        --config.data.partition=dirichlet

By default every client has two classes, and trains LeNet for about one epoch per round.
Without the files, images are simulated, see docs/guide/data.md.
Quick look: add --config.data.cap=500 --config.rounds=5 --config.local_steps=10.
"""

from graphfl_jax.configs import image_sets


def get_config(method="fedavg"):
    """The configuration of a method of `base.methods`."""
    return image_sets.configure(method, "cifar10", rates="cifar10", local_steps=78)
