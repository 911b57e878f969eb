"""TPT-48: half a year's temperatures forecast from the half before, one client per US state.

    python -m experiments.run --config=configs/tpt48.py
    python -m experiments.run --config=configs/tpt48.py:fedavg

Expect: TPT_EXPECT
Quick look: add --config.rounds=40. To choose settings: add --config.data.val_fraction=0.1.
"""

from configs import base

# What each method changes. Floats were chosen on validation; BUILD.md tells how.
METHODS = {
    "panacea": {
        "hparams.client_lr": 0.1,
        "hparams.server_lr": 0.1,
        "hparams.lambda_d": 0.3,
    },
    "panacea-gn": {
        "hparams.client_lr": 0.1,
        "hparams.server_lr": 0.1,
        "hparams.lambda_d": 0.0,
    },
    "panacea-mlp": {
        "algorithm.name": "panacea_mlp",
        "hparams.client_lr": 0.1,
        "hparams.server_lr": 0.1,
    },
    "pfedhn": {
        "algorithm.name": "pfedhn",
        "algorithm.embedding_dim": 0,
        "server_steps": 1,
        "client_optimizer": "momentum",
        "server_optimizer": "momentum",
        "hparams.client_lr": 0.03,
        "hparams.server_lr": 0.03,
    },
    "fedavg": {"algorithm.name": "fedavg", "hparams.client_lr": 0.1},
    "local": {"algorithm.name": "local", "hparams.client_lr": 0.1},
}


def get_config(method="panacea"):
    """The configuration of one of METHODS."""
    config = base.get_config()
    config.data.name = "tpt48"
    config.update_from_flattened_dict(METHODS[method])
    return config
