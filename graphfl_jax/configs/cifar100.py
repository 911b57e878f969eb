"""CIFAR-100: a hundred kinds of things, colour images of 32 pixels, divided among ten clients.

    graphfl run cifar100
    graphfl run cifar100:ditto \\
        --config.data.partition=dirichlet

By default every client has twenty classes, and trains LeNet for about one epoch per round.
Without the files, images are simulated, see docs/guide/data.md.
Quick look: add --config.data.cap=500 --config.rounds=5 --config.local_steps=10.
"""

from graphfl_jax.configs import image_sets


def get_config(method="fedavg"):
    """The configuration of a method of `base.methods`."""
    return image_sets.configure(
        method, "cifar100", rates="cifar10", local_steps=78, data__classes_per_client=20
    )
