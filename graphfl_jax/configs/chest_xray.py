"""ChestX-ray14: fourteen findings in chest radiographs, patients divided among eight clients.

    graphfl run chest_xray
    graphfl run chest_xray:ditto \\
        --config.data.partition=dirichlet

An image can have several findings. The score is the AUC, the mean over the findings. By default
the patients are divided at random, and every client trains LeNet on images of 64 pixels.
Without the files, images are simulated, see docs/guide/data.md.
Quick look: add --config.data.image_size=32 --config.rounds=5 --config.local_steps=10.
"""

from graphfl_jax.configs import image_sets


def get_config(method="fedavg"):
    """The configuration of a method of `base.for_any_task`."""
    return image_sets.configure(
        method,
        "chest_xray",
        rates="cifar10",
        data__clients=8,
        cohort_size=8,
        local_steps=20,
        eval_batch_size=128,
    )
