"""FL-60: sixty clients on a spiral, a binary problem in the plane each; generated from a seed.

    graphfl run fl60
    graphfl run fl60:fedavg

Expect: test accuracy at P of 99.8 to 100 % with every method but FedAvg, which ends between 95
and 100 % by the seed; fifteen seconds on two CPU cores.
Quick look: add --config.rounds=40. To choose settings: add --config.data.val_fraction=0.1.
"""

from graphfl_jax.configs import base

# Chosen on validation, see docs/developer/decisions.md. Those of scaffold, fedavgm, fedadam,
# fedyogi, fedper, fedrep and fedah were not searched.
METHODS = {
    "panacea": {"client_lr": 0.03, "server_lr": 0.03, "lambda_d": 0.03},
    "panacea-gn": {"client_lr": 0.03, "server_lr": 0.03},
    "panacea-mean": {"client_lr": 0.03, "server_lr": 0.03, "lambda_d": 0.03},
    "panacea-mlp": {"client_lr": 0.03, "server_lr": 0.03},
    "pfedhn": {"client_lr": 0.001, "server_lr": 0.01},
    "fedavg": {"client_lr": 0.1},
    "fedavg-finetune": {"client_lr": 0.01, "tuning_lr": 0.01},
    "fedprox": {"client_lr": 0.1, "mu": 0.001},
    "scaffold": {"client_lr": 0.1},
    "fedavgm": {"client_lr": 0.1, "server_lr": 0.1},
    "fedadam": {"client_lr": 0.1, "server_lr": 0.01},
    "fedyogi": {"client_lr": 0.1, "server_lr": 0.01},
    "fedper": {"client_lr": 0.1},
    "fedrep": {"client_lr": 0.1},
    "fedah": {"client_lr": 0.1},
    "perfedavg": {"client_lr": 0.003, "perfedavg_alpha": 0.03},
    "pfedme": {"client_lr": 0.01, "pfedme_lr": 0.003},
    "ditto": {"client_lr": 0.001, "ditto_lambda": 0.05},
    "sfl": {"client_lr": 0.1, "sfl_lambda": 0.1},
    "sfl-star": {"client_lr": 0.1, "sfl_lambda": 0.1},
    "local": {"client_lr": 0.001},
}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configured(method, "fl60", tuned=METHODS)
