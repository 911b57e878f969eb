"""TPT-48: half a year's temperatures forecast from the half before, one client per US state.

    graphfl run tpt48
    graphfl run tpt48:fedavg

Expect: test MSE at P of 2.09e-3 (panacea, panacea-mlp), 2.11e-3 (panacea-mean, perfedavg,
local), 2.28e-3 (pfedhn), 2.43e-3 (fedavg), 2.03e-3 (fedavg-finetune), 2.05e-3 (ditto), 2.06e-3
(pfedme), 2.20e-3 (sfl), within 0.1e-3 by the seed; ten seconds on two CPU cores.
Quick look: add --config.rounds=40. To choose settings: add --config.data.val_fraction=0.1.
"""

from graphfl_jax.configs import base

SETTINGS = {"hparams.client_lr": 0.1, "algorithm.step_per_client": True}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "tpt48", tuned=base.TUNED["tpt48"], settings=SETTINGS)
