"""Your own data, from a file of arrays; docs/guide/data.md describes it.

    graphfl run custom --config.data.path=federation.npz

Other methods: custom:fedavg and so on. If the file has no relations, add
--config.data.graph=knn, or choose a method that needs none.
Quick look: add --config.rounds=40. The settings are the declared defaults, which fit no data in
particular; `graphfl sweep` finds better ones.
"""

from graphfl_jax.configs import base

# The file may have validation examples of its own.
SETTINGS = {"data.val_fraction": 0.0}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "custom", settings=SETTINGS)
