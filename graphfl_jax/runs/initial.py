"""The state of a server from which a run begins: that of another run, or its own."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.build import Experiment
from graphfl_jax.core import State
from graphfl_jax.runs import checkpoint, multihost
from graphfl_jax.runs.debug import DebugSession
from graphfl_jax.runs.forms import FEDERATION, read_json
from graphfl_jax.runs.results import DESCRIPTION, digest_of_names
from graphfl_jax.runs.session import Session, place


class Beginning:
    """Where a run begins. `identity` is what this adds to the identity of the run."""

    def __init__(self, config: ConfigDict, experiment: Experiment, recorded: str = ""):
        """Reads the state from which a new run begins.

        Args:
          recorded: the digest of that state, of a run that is resumed. It is then read only if
            there is no checkpoint to go on from.
        """
        self.config, self.experiment, self.server = config, experiment, None
        if config.init_from and not recorded:
            self.server = initial_server(config, experiment)
            recorded = digest_of_server(self.server)
        self.identity = {"init": recorded} if config.init_from else {}

    def state(self, session: Session | DebugSession) -> State:
        """The state before the first round. It is refused if it is not the recorded one."""
        if not self.config.init_from:
            return session.state
        if self.server is None:
            self.server = initial_server(self.config, self.experiment)
            if digest_of_server(self.server) != self.identity["init"]:
                raise ValueError(
                    f"init_from={self.config.init_from} has another state than when this run "
                    f"began, and there is no checkpoint to go on from; choose another --out"
                )
        server = jax.tree.map(
            lambda leaf, like: place(leaf, like.sharding), self.server, session.state.server
        )
        return session.start(server)


def initial_server(config: ConfigDict, experiment: Experiment) -> Any:
    """The state of the server in the newest valid checkpoint of ``config.init_from``.

    Of several processes, the first one reads it.

    Raises:
      ValueError: there is no checkpoint, or its server has another state; one line that names
        the first leaf that differs.
    """
    algorithm, graph = experiment.build(experiment.hparams, 0), experiment.federation.data.graph
    template = jax.eval_shape(lambda: algorithm.server.init(jax.random.key(config.seed), graph))

    def read():
        if not multihost.is_first():
            return None
        what, folder = f"init_from={config.init_from}", Path(config.init_from)
        server = _read_server(what, folder, template)
        if not algorithm.averages:  # the server may keep something of each client
            _check_clients(what, folder, experiment.federation)
        return server

    leaves = multihost.from_first(multihost.run_synchronized(read))
    names = tree.leaves_by_name({"server": template})  # in an order that messages lose
    return jax.tree.unflatten(jax.tree.structure(template), [leaves[name] for name in names])


def digest_of_server(server: Any) -> str:
    """SHA-256 of the state of a server."""
    digest = hashlib.sha256()
    for name, leaf in tree.leaves_by_name(server).items():
        leaf = np.ascontiguousarray(leaf)
        digest.update(f"{name}{leaf.dtype}{leaf.shape}".encode())
        digest.update(leaf)
    return digest.hexdigest()


def check_not_single(config: ConfigDict, *, on_host: bool) -> None:
    """Refuses what only single runs can.

    Args:
      on_host: `Experiment.on_host`.
    """
    if config.init_from:
        raise ValueError(
            f"init_from={config.init_from} is only for single runs; leave it out, or use "
            f"graphfl run"
        )
    if on_host:
        raise ValueError(
            f"data.storage={config.data.storage!r} keeps the examples on the host, only for "
            f"single runs; set --config.data.storage=device, or use graphfl run"
        )


def _read_server(what, folder, template):
    """The leaves of the server's state in a run's folder, by name."""
    state = checkpoint.newest(folder / "checkpoints")
    if state is None:
        raise ValueError(
            f"{what} has no valid checkpoint; give the folder of a run that has played rounds"
        )
    server = {name: leaf for name, leaf in state.items() if name.split("/")[0] == "server"}
    expected = tree.leaves_by_name({"server": template})
    for name in dict.fromkeys((*expected, *server)):
        there, here = _form(server.get(name)), _form(expected.get(name))
        if there != here:
            raise ValueError(
                f"{what} has another state of the server: {name} is {there} there and {here} "
                f"here; choose a run of the same method, model and data"
            )
    return {name: server[name] for name in expected}


def _check_clients(what, folder, federation):
    """Checks that the clients that train are those of the run in a folder, in their order."""
    try:
        described = read_json(folder / DESCRIPTION, FEDERATION)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{what} has no {DESCRIPTION}, or a damaged one ({error}); give the folder of "
            f"another run"
        ) from error
    there = [client["name"] for client in described["clients"] if not client["new"]]
    here = federation.clients[: federation.training_clients]
    if listed := described.get("listed"):
        if listed["sha256"] != digest_of_names(here):
            new = sum(client["new"] for client in described["clients"])
            raise ValueError(
                f"{what} has other clients that train: {listed['of'] - new:,} there and "
                f"{len(here):,} here, and not the same names; choose the same data, new "
                f"clients and seed"
            )
        return
    for i, (old, new) in enumerate(itertools.zip_longest(there, here)):
        if old != new:
            raise ValueError(
                f"{what} has other clients that train: client {i} is {old} there and {new} "
                f"here; choose the same data, new clients and seed"
            )


def _form(leaf):
    return "missing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
