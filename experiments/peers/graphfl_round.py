"""Times rounds of FedAvg in graphfl_jax; see measured.py for the works and the line.

    PYTHONPATH=. .venv/bin/python experiments/peers/graphfl_round.py --work=w1

The session is the one of `graphfl_jax.run`, with each core as a device, as in the commands.
With --kept, it reads and writes compiled programs in a folder, as `run` does: the first start
with an empty folder is a user's first start.

Differences: a step draws its 64 examples from all of its client's. w1 has simulated
temperatures of TPT-48, w2 has random bytes as images, and w3 has the data of `geometric`, whose
examples are computed when they are read. Rounds of w3 are played 20 at a time, as in a run:
the clients of the next 20 are gathered meanwhile. Like `run`, the session compiles its
evaluation while the first round plays, and the rounds after it wait for that; the other
libraries prepare none.
"""

import os

import jax
import measured
import numpy as np

import graphfl_jax
from graphfl_jax import configs
from graphfl_jax.build import arrange, build_experiment, load_federation
from graphfl_jax.program import ROUNDS_PER_EXECUTION, play_rounds
from graphfl_jax.runs.executables import private_folder
from graphfl_jax.runs.single import compile_session

TEST = 100  # images of a client


def temperatures(work):
    config = configs.tpt48.get_config("fedavg")
    config = configs.change(config, {"data.source": "simulated"})
    return config, load_federation(config)


def images(work):
    config = configs.custom.get_config("fedavg")
    each = work.examples + TEST
    total, rng = work.clients * each, np.random.default_rng(0)
    federation = graphfl_jax.from_arrays(
        rng.integers(256, size=(total, 28, 28, 1), dtype=np.uint8),
        rng.integers(10, size=total),
        np.repeat(np.arange(work.clients), each),
        split=np.tile(np.where(np.arange(each) < work.examples, "train", "test"), work.clients),
    )
    config = configs.change(config, {"model.name": "lenet"})
    return config, arrange(config, federation)


def places(work):
    config = configs.million.get_config("fedavg")
    sizes = {"data.clients": work.clients, "data.train_examples": work.examples}
    config = configs.change(config, sizes | {"rounds": 1_000_000})
    return config, load_federation(config)


WORKS = {"w1": temperatures, "w2": images, "w3": places}


def main():
    parser = measured.parser()
    parser.add_argument("--kept", help="folder of compiled programs; by default none are kept")
    flags = parser.parse_args()
    rounds = measured.Rounds(flags)
    work = rounds.work
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    config, federation = WORKS[rounds.name](work)
    sizes = {"cohort_size": work.cohort, "local_steps": work.steps, "seed": 0}
    rates = {"batch_size": measured.BATCH, "hparams.client_lr": measured.RATE}
    config = configs.change(config, sizes | rates)
    experiment = build_experiment(config, federation)
    rounds.ready()
    at_once = ROUNDS_PER_EXECUTION if experiment.on_host else 1
    session = compile_session(experiment, config, executables=private_folder(flags.kept))
    state = session.state

    def play_round():
        nonlocal state
        state, _ = jax.block_until_ready(play_rounds(session.advance, state, at_once))

    rounds.play(play_round, at_once, session.kept.wait)
    parameters = experiment.model.init(jax.random.key(0))
    rounds.show("graphfl_jax", sum(leaf.size for leaf in jax.tree.leaves(parameters)))


if __name__ == "__main__":
    main()
