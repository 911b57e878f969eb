"""Your own data, from a file of arrays; the README tells what is in it.

    python -m experiments.run --config=configs/custom.py --config.data.path=federation.npz

Other methods: configs/custom.py:fedavg and so on. Where the file has no relations, add
--config.data.graph=knn, or take a method that needs none.
Quick look: add --config.rounds=40. The settings are the defaults of configs/base.py, which suit
no data in particular; experiments/sweep.py chooses better ones.
"""

from graphfl_jax.configs import base


def get_config(method="panacea"):
    """The configuration of a method of `base.METHODS`."""
    return base.configured(method, "custom")
