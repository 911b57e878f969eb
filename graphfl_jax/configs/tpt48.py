"""TPT-48: half a year's temperatures forecast from the half before, one client per US state.

    graphfl run tpt48
    graphfl run tpt48:fedavg

Expect: test MSE at P of 2.13e-3 (panacea), 2.24e-3 (panacea-mean), 2.10e-3 (panacea-mlp),
2.40e-3 (pfedhn), 2.52e-3 (fedavg), 2.06e-3 (fedavg-finetune, ditto), 2.36e-3 (perfedavg),
2.09e-3 (pfedme), 2.27e-3 (sfl), 2.12e-3 (local), within 0.1e-3 by the seed; ten seconds on two
CPU cores.
Quick look: add --config.rounds=40. To choose settings: add --config.data.val_fraction=0.1.
"""

from graphfl_jax.configs import base

SETTINGS = {"hparams.client_lr": 0.1}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "tpt48", tuned=base.TUNED["tpt48"], settings=SETTINGS)
