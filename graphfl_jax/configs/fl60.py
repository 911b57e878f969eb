"""FL-60: sixty clients on a spiral, a binary problem in the plane each; generated from a seed.

    graphfl run fl60
    graphfl run fl60:fedavg

Expect: test accuracy at P of 99.8 to 100 % with every method but FedAvg, which ends between 95
and 100 % by the seed; fifteen seconds on two CPU cores.
Quick look: add --config.rounds=40. To choose settings: add --config.data.val_fraction=0.1.
"""

from graphfl_jax.configs import base

SETTINGS = {"hparams.client_lr": 0.1, "algorithm.step_per_client": True}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "fl60", tuned=base.TUNED["fl60"], settings=SETTINGS)
