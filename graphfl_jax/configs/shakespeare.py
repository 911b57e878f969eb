"""Shakespeare: the next character of a line from the 80 before, one client per speaking role.

    graphfl run shakespeare
    graphfl run shakespeare:ditto --config.data.clients=100

Every client trains an LSTM of two layers on at most 200 characters. With the hundreds of roles
of the files, evaluations on a CPU take minutes; --config.eval.clients=50 scores some. The
learning rates were not searched. Without the files of LEAF, the text is simulated, see
docs/guide/data.md.
Quick look: add --config.model.hidden=32 --config.data.clients=20 --config.rounds=5.
"""

from graphfl_jax.configs import base

SETTINGS = base.CLIPPED | {
    "data.cap": 200,
    "data.graph": "knn",
    "data.neighbours": 3,
    "model.name": "lstm",
    "cohort_size": 10,
    "batch_size": 10,
    "local_steps": 20,
    "hparams.client_lr": 0.8,
    "rounds": 200,
    "eval_every": 50,
}


def get_config(method="fedavg"):
    """The configuration of a method of `base.methods`."""
    return base.configure(method, "shakespeare", settings=SETTINGS)
