"""Times rounds of FedAvg with LeNet, for the comparison with fluke on the page about speed.

The work is that of `fluke_round.py`: 10 of 20 clients with 500 generated images each, 8 batches
of 64, SGD. Prints the seconds of a round, and those of the first round from the start of this
process.
"""

import os
import statistics
import time

import jax
import psutil

from experiments.benchmarks import scaling, timing
from graphfl_jax import configs
from graphfl_jax.build import build_experiment
from graphfl_jax.runs.session import mesh_of

ROUNDS = 8


def main():
    # As the commands do: each core is a device, and the devices share the clients of a round.
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    config = configs.change(
        configs.custom.get_config("fedavg"),
        {
            "model.name": "lenet",
            "cohort_size": 10,
            "local_steps": 8,
            "batch_size": 64,
            "hparams.client_lr": 0.1,
        },
    )
    federation = scaling.image_federation((28, 28, 1), clients=20, examples=500, classes=10)
    experiment = build_experiment(config, federation)
    rounds = timing.compile_rounds(experiment, config, mesh=mesh_of(experiment))
    play = timing.player(rounds, 1)
    jax.block_until_ready(play())
    first = time.time() - psutil.Process().create_time()
    seconds = [timing.seconds(play) for _ in range(ROUNDS - 1)]
    print(f"median {statistics.median(seconds):.3f} s of a round")
    print(f"{first:.1f} s from the start to the end of the first round")


if __name__ == "__main__":
    main()
