"""PEMS-BAY: an hour of traffic speeds forecast from the hour before, one client per sensor.

python -m experiments.run --config=configs/pems_bay.py
python -m experiments.run --config=configs/pems_bay.py:fedavg
"""

from configs import base

METHODS = {
    "panacea": {"client_lr": 0.1, "server_lr": 0.1, "lambda_d": 0.01},
    "panacea-gn": {"client_lr": 0.1, "server_lr": 0.1},
    "panacea-mean": {"client_lr": 0.1, "server_lr": 0.1, "lambda_d": 0.01},
    "panacea-mlp": {"client_lr": 0.1, "server_lr": 0.1},
    "pfedhn": {"client_lr": 0.01, "server_lr": 0.03},
    "fedavg": {"client_lr": 0.1},
    "fedavg-finetune": {"client_lr": 0.1, "tuning_lr": 0.1},
    "fedprox": {"client_lr": 0.1, "mu": 0.001},
    "perfedavg": {"client_lr": 0.1, "perfedavg_alpha": 0.1},
    "pfedme": {"client_lr": 0.03, "pfedme_lr": 0.1},
    "ditto": {"client_lr": 0.1, "ditto_lambda": 0.1},
    "sfl": {"client_lr": 0.1, "sfl_lambda": 0.1},
    "sfl-star": {"client_lr": 0.1, "sfl_lambda": 0.1},
    "local": {"client_lr": 0.1},
}


def get_config(method="panacea"):
    """The configuration of one of METHODS."""
    config = base.for_method(method, METHODS[method])
    base.for_traffic(config)
    config.data.name = "pems_bay"
    return config
