"""PEMS-BAY: an hour of traffic speeds forecast from the hour before, one client per sensor.

    graphfl run pems_bay
    graphfl run pems_bay:fedavg

325 sensors; the files of DCRNN, or simulated traffic. A round takes about a second on two CPU
cores, and an evaluation of 16 sensors half a minute.
With 16 of the 325 sensors and 100 rounds, expect a test mse of about 0.22 at G; persistence has
0.31.
Quick look: add --config.rounds=20 --config.data.steps=600.
"""

from graphfl_jax.configs import base

# docs/developer/decisions.md lists the floats that were chosen on validation. The others were
# not searched.
METHODS = {
    "panacea": {"client_lr": 0.001, "server_lr": 0.0003, "lambda_d": 0.01},
    "panacea-gn": {"client_lr": 0.001, "server_lr": 0.0003},
    "panacea-mean": {"client_lr": 0.001, "server_lr": 0.0003, "lambda_d": 0.01},
    "panacea-mlp": {"client_lr": 0.001, "server_lr": 0.0003},
    "pfedhn": {"client_lr": 0.001, "server_lr": 0.003},
    "fedavg": {"client_lr": 0.001},
    "fedavg-finetune": {"client_lr": 0.001, "tuning_lr": 0.001},
    "fedprox": {"client_lr": 0.001, "mu": 0.001},
    "scaffold": {"client_lr": 0.01},
    "fedavgm": {"client_lr": 0.001, "server_lr": 0.1},
    "fedadam": {"client_lr": 0.001, "server_lr": 0.001},
    "fedyogi": {"client_lr": 0.001, "server_lr": 0.001},
    "fedper": {"client_lr": 0.001},
    "fedrep": {"client_lr": 0.001},
    "fedah": {"client_lr": 0.001},
    "perfedavg": {"client_lr": 0.01, "perfedavg_alpha": 0.01},
    "pfedme": {"client_lr": 0.01, "pfedme_lr": 0.01},
    "ditto": {"client_lr": 0.001, "ditto_lambda": 0.1},
    "sfl": {"client_lr": 0.001, "sfl_lambda": 0.1},
    "sfl-star": {"client_lr": 0.001, "sfl_lambda": 0.1},
    "local": {"client_lr": 0.001},
}


# The GRU, and evaluations that fit into memory. Those before the last round compute what ranks
# settings, which takes an eighth of the time of everything. Adam on both sides: the gradient of
# twelve steps, each of which reads the output of the last one, explodes now and then, and plain
# SGD diverges at the learning rates at which it learns.
SETTINGS = {
    "model.name": "gru",
    "eval_every": 200,
    "eval.points": ("P",),
    "eval.splits": ("val",),
    "clients_per_eval": 20,
    "client_optimizer": "adam",
    "server_optimizer": "adam",
}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configured(method, "pems_bay", tuned=METHODS, settings=SETTINGS)
