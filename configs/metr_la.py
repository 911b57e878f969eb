"""METR-LA: an hour of traffic speeds forecast from the hour before, one client per sensor.

python -m experiments.run --config=configs/metr_la.py
python -m experiments.run --config=configs/metr_la.py:fedavg
"""

from configs import base, pems_bay

# Chosen on the other sensors; BUILD.md tells how.
METHODS = pems_bay.METHODS


def get_config(method="panacea"):
    """The configuration of one of METHODS."""
    config = base.for_method(method, METHODS[method])
    base.for_traffic(config)
    config.data.name = "metr_la"
    return config
