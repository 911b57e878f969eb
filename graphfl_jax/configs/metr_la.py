"""METR-LA: an hour of traffic speeds forecast from the hour before, one client per sensor.

    graphfl run metr_la
    graphfl run metr_la:fedavg

207 sensors; the files of DCRNN, or simulated traffic. A round takes about a second on two CPU
cores, and an evaluation of all sensors over one week a minute, over four months 80 seconds.
With one week of data and 400 rounds, expect a test mse of about 0.38 at G; persistence has
0.46.
Quick look: add --config.rounds=20 --config.data.steps=600.
"""

from graphfl_jax.configs import base, pems_bay


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`."""
    # Chosen on the other sensors; see docs/developer/decisions.md.
    tuned, settings = pems_bay.METHODS, pems_bay.SETTINGS
    return base.configure(method, "metr_la", tuned=tuned, settings=settings)
