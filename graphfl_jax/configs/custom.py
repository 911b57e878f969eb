"""Your own data, from a file of arrays; docs/guide/data.md describes it.

    graphfl run custom --config.data.path=federation.npz

Other methods: custom:fedavg and so on. If the file has no relations, add
--config.data.graph=knn, or choose a method that needs none.
Quick look: add --config.rounds=40. The settings fit no data in particular. Clipped gradients
let few data diverge; `graphfl sweep` finds better learning rates.
"""

from graphfl_jax.configs import base

# The file may have validation examples of its own. Regressions diverge at higher rates, and
# without the clipped gradients.
SETTINGS = base.CLIPPED | {"data.val_fraction": 0.0, "hparams.client_lr": 0.03}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "custom", settings=SETTINGS)
