"""MNIST: ten handwritten digits, grey images of 28 pixels, divided among ten clients.

    graphfl run mnist
    graphfl run mnist:ditto \\
        --config.data.partition=dirichlet

By default every client has two digits, and trains LeNet for about one epoch per round. The
learning rates are those of Fashion-MNIST and were not searched here.
Without the files, images are simulated, see docs/guide/data.md.
Quick look: add --config.data.cap=500 --config.rounds=5 --config.local_steps=10.
"""

from graphfl_jax.configs import image_sets


def get_config(method="fedavg"):
    """The configuration of a method of `base.methods`."""
    return image_sets.configure(method, "mnist", rates="fashion_mnist", local_steps=94)
