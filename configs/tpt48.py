"""TPT-48: half a year's temperatures forecast from the half before, one client per US state.

python -m experiments.run --config=configs/tpt48.py
python -m experiments.run --config=configs/tpt48.py:fedavg
"""

from configs import base

METHODS = {
    "panacea": {},
    "panacea-gn": {"hparams.lambda_d": 0.0},
    "panacea-mlp": {"algorithm.name": "panacea_mlp"},
    "fedavg": {"algorithm.name": "fedavg"},
    "local": {"algorithm.name": "local"},
    "pfedhn": {
        "algorithm.name": "pfedhn",
        "algorithm.embedding_dim": 0,
        "server_steps": 1,
        "client_optimizer": "momentum",
        "server_optimizer": "momentum",
    },
}


def get_config(method="panacea"):
    config = base.get_config()
    config.update_from_flattened_dict(METHODS[method])
    return config
