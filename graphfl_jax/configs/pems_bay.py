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
PANACEA = {"server_lr": 0.0003}
FIRST = {"client_lr": 0.1}
METHODS = {
    "panacea": {**PANACEA, "lambda_d": 0.01},
    "panacea-gn": PANACEA,
    "panacea-mean": {**PANACEA, "lambda_d": 0.01},
    "panacea-mlp": PANACEA,
    "pfedhn": {"server_lr": 0.003},
    "pfedhn-het": FIRST,
    "fedavg-finetune": {"tuning_lr": 0.001},
    "fedprox": {"mu": 0.001},
    "scaffold": {"client_lr": 0.01},
    "fedavgm": {"server_lr": 0.1},
    "fedadam": {"server_lr": 0.001},
    "fedyogi": {"server_lr": 0.001},
    "perfedavg": {"client_lr": 0.01, "perfedavg_alpha": 0.01},
    "pfedme": {"client_lr": 0.01, "pfedme_lr": 0.01},
    "ditto": {"ditto_lambda": 0.1},
    "sfl": {"sfl_lambda": 0.1},
    "sfl-star": {"sfl_lambda": 0.1},
    "fedamp": FIRST,
    "heurfedamp": FIRST,
    "cfl": FIRST,
    "lgfedavg": FIRST,
    "heterofl": FIRST,
    **dict.fromkeys(("pfedgat", "pfedgat-v2", "pfedgat-direct", "pfedgat-dot"), FIRST),
    **dict.fromkeys(base.needing("labels"), FIRST),
}


# The GRU, and evaluations that fit into memory. Those before the last round compute what ranks
# settings, which takes an eighth of the time of everything. Adam on both sides: the gradient of
# twelve steps, each of which reads the output of the last one, explodes now and then, and plain
# SGD diverges at the learning rates at which it learns.
SETTINGS = {
    "model.name": "gru",
    "hparams.client_lr": 0.001,
    "eval_every": 200,
    "eval.points": ("P",),
    "eval.splits": ("val",),
    "clients_per_eval": 20,
    "client_optimizer": "adam",
    "server_optimizer": "adam",
}


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "pems_bay", tuned=METHODS, settings=SETTINGS)
