"""What the checks play: a method with a small federation with known answers, compiled once."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment, build_experiment
from graphfl_jax.configs import base, change
from graphfl_jax.core import FederatedData
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.declarations import NOTHING
from graphfl_jax.devices import client_mesh
from graphfl_jax.examples import Examples
from graphfl_jax.program import Program
from graphfl_jax.runs.session import program_of
from graphfl_jax.wire.attacks import with_attack_order

STEPS = 40  # local steps in which every method learns; rates are traced and set by the checks
DEVICES = 4
NEW = 0.3  # of the clients, where some join later: two of seven
RATES = ("_lr", "_eta")  # ends of the names of floats that are rates

# Sizes for these federations. They have seven clients, and no other axis has that size, so that
# a test can recognise the axes of clients.
SMALL = {
    "cohort_size": 4,
    "local_steps": 5,
    "batch_size": 6,
    "model.hidden": (5,),
    "algorithm.server_steps": 2,
    "algorithm.embedding_dim": 6,
    "algorithm.width": 8,
    "algorithm.depth": 2,
    "algorithm.ghn_depth": 2,
    "algorithm.ghn_width": 8,
    "algorithm.fedbuff_concurrency": 1,
    "algorithm.fedfomo_models": 6,  # all others, so that no draw depends on names
    "hparams.client_lr": 0.1,
    "hparams.server_lr": 0.05,
    "hparams.pfedme_lambda": 1.0,  # times client_lr it must be below 1
    # In a network of five units, what all clients share must not outweigh a client's labels.
    "hparams.fedproto_lambda": 0.01,
    "hparams.fml_alpha": 0.9,
    "hparams.distillation_alpha": 0.01,
}


class LeftOut(Exception):
    """Why a check does not apply, or cannot be made here."""


class Subject:
    """A method at small sizes, as the checks get it.

    They differ in the values of data, rates and keys, not in shapes, so they share a program.
    """

    def __init__(self, method: str, settings: Mapping[str, Any] = NOTHING):
        """Builds nothing yet.

        Args:
          method: one of `configs.methods`.
          settings: other fields of its configuration.
        """
        self.method, self.settings = method, dict(settings)

    def config(self, **fields: Any) -> ConfigDict:
        """The configuration with other fields, with __ for the dots of their names."""
        return small_config(self.method, **(self.settings | fields))

    @functools.cached_property
    def experiment(self) -> Experiment:
        return build_experiment(self.config(local_steps=STEPS), federation())

    @functools.cached_property
    def program(self) -> Program:
        return program_of(self.experiment, self.config(local_steps=STEPS))

    @functools.cached_property
    def sharded_program(self) -> Program:
        """The same on several devices. Raises `LeftOut` if there are none."""
        mesh = client_mesh(DEVICES)
        if mesh is None:
            raise LeftOut(
                f"there is one device; set XLA_FLAGS=--xla_force_host_platform_device_count="
                f"{DEVICES}"
            )
        return program_of(self.experiment, self.config(clients_per_eval=3), mesh)

    @property
    def hparams(self) -> dict[str, np.float32]:
        return floats(self.experiment.hparams)

    @property
    def data(self):
        return self.experiment.federation.data

    @property
    def fast(self) -> float:
        """A learning rate with which every method learns; momentum multiplies it."""
        return 0.3 * (1 - self.experiment.hparams.get("client_momentum", 0.0))

    def play(self, rounds: int, data=None, **rates: float):
        """State, log and scores after some rounds."""
        key, data, hparams = fixed_key(), data or self.data, floats(self.hparams, **rates)
        state = self.program.start(key, hparams, data)
        state, log = self.program.advance(state, key, hparams, data, np.int32(rounds))
        return state, log, self.program.evaluate(state, key, hparams, data)[0]

    def with_attackers(self, whole: Federation | None = None, mesh=None, **fields: Any):
        """Experiment and program of a federation with its attackers."""
        whole = with_attack_order(whole or federation(), clients=(), seed=0)
        config = self.config(**fields)
        experiment = build_experiment(config, whole)
        return experiment, program_of(experiment, config, mesh)

    def after_a_round(self, mesh=None, *, ratio: float = 0.0, **fields: Any):
        """The state after the first round with an attack."""
        experiment, program = self.with_attackers(mesh=mesh, **fields)
        inputs = (fixed_key(), floats(experiment.hparams, attack_ratio=ratio))
        data = experiment.federation.data
        start = self.program.start(fixed_key(), self.hparams, self.data)
        return program.advance(jax.device_get(start), *inputs, data, np.int32(1))[0]

    def joining(self, graph: str = "inductive"):
        """Experiment and program of a federation in which two of seven clients join later."""
        held_out = hold_out(federation(), fraction=NEW, graph=graph, seed=0)
        config = self.config(local_steps=STEPS, new_clients__fraction=NEW)
        experiment = build_experiment(config, held_out)
        return experiment, program_of(experiment, config)


@functools.cache
def fixed_key() -> jax.Array:
    """The key of all checks, made at the first call, since it starts JAX's devices."""
    with jax.ensure_compile_time_eval():
        return jax.random.key(3)


def small_config(method="panacea", **changes):
    """A method at small sizes; `changes` by dotted name, with __ for the dots."""
    config = base.configure(method, "tpt48", settings=SMALL)
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return change(config, changes)


def two_clusters(num_clients=7, padding=0, filler=0.0) -> Federation:
    """Clients of two kinds, which give the same points opposite labels.

    Even clients label the right half-plane 1, odd clients 0: a shared model is right half of
    the time, and a personal one always. Clients of a kind are neighbours. Numbers of examples
    differ; `padding` more rows of `filler` follow the real ones.
    """
    rng = np.random.default_rng(0)
    kind = np.arange(num_clients) % 2  # [N]

    def examples(smallest):
        counts = smallest + np.arange(num_clients) % 3
        size = counts.max() + padding
        x = rng.uniform(-1, 1, (num_clients, counts.max(), 2)).astype(np.float32)
        x[..., 0] += 0.5 * np.sign(x[..., 0])  # a margin around the border
        y = ((x[..., 0] > 0) ^ kind[:, None]).astype(np.int32)
        real = np.arange(size) < counts[:, None]  # [N, S]
        x = np.pad(x, ((0, 0), (0, padding), (0, 0)))
        y = np.pad(y, ((0, 0), (0, padding)))
        x = np.where(real[..., None], x, np.float32(filler))
        return Examples(x, np.where(real, y, 0).astype(np.int32), counts.astype(np.int32))

    train, val, test = examples(10), examples(8), examples(12)
    pairs = [(i, j) for i in range(num_clients) for j in range(i) if kind[i] == kind[j]]
    data = FederatedData(
        train, {"val": val, "test": test}, relations.from_edges(num_clients, pairs)
    )
    names = tuple(f"client {i}" for i in range(num_clients))
    return Federation(data, "classification", 2, "two_clusters", "generated", "0" * 64, names)


def federation(padding: int = 5, filler: float = 0.0) -> Federation:
    return two_clusters(padding=padding, filler=filler)


def floats(hparams: Mapping[str, float], **other: float) -> dict[str, np.float32]:
    """Traced floats, some of them with other values."""
    return {name: np.float32(other.get(name, value)) for name, value in hparams.items()}


def assert_equal(a: Any, b: Any, **tolerance: float) -> None:
    """Two trees are the same: bit for bit, or within the tolerance."""
    assert jax.tree.structure(a) == jax.tree.structure(b), "the structures differ"
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


def stack(trees: list) -> Any:
    """Trees as one, with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
