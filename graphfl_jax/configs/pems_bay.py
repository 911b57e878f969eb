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

# Methods that need classes are not for this task; they have the rate of others that were not
# searched.
METHODS = base.TUNED["pems_bay"] | dict.fromkeys(base.needing("labels"), {"client_lr": 0.1})
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
