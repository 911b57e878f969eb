"""FEMNIST: 62 handwritten characters, grey images of 28 pixels, one client per writer.

    graphfl run femnist
    graphfl run femnist:ditto --config.data.clients=100

Every client trains LeNet. The learning rates are those of Fashion-MNIST and were not searched
here. Without the files of LEAF, images are simulated, see docs/guide/data.md.
Quick look: add --config.data.cap=50 --config.rounds=5 --config.local_steps=5.
"""

from graphfl_jax.configs import image_sets


def get_config(method="fedavg"):
    """The configuration of a method of `base.methods`."""
    return image_sets.configure(
        method,
        "femnist",
        rates="fashion_mnist",
        local_steps=20,
        batch_size=20,
        rounds=200,
        eval_every=20,
    )
