"""From a configuration to the parts of a federation; nothing beneath this reads one.

Factories of algorithms, data sets, models and optimisers say in their keyword-only arguments
what they need, and get the configuration's fields of those names: an algorithm's floats come
from ``hparams`` and stay traced, its integers and names from ``algorithm``. A new method is one
file, one line in its dictionary, and the fields it names.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.tuning import finetuned
from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.data import DATASETS, GRAPHS
from graphfl_jax.data.federation import Federation
from graphfl_jax.data.files import default_root
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.metrics import task_of
from graphfl_jax.models import MODELS
from graphfl_jax.optimizers import OPTIMIZERS
from graphfl_jax.robustness import attacks, defences
from graphfl_jax.trainers import epoch_trainer, sgd_trainer

COUNTS = (
    "rounds",
    "eval_every",
    "checkpoint_every",
    "cohort_size",
    "batch_size",
    "local_steps",
    "server_steps",
    "eval_batch_size",
    "algorithm.width",
    "algorithm.depth",
    "algorithm.pfedme_steps",
    "algorithm.sfl_layers",
    "algorithm.sfl_graph_steps",
    "tuning.steps",
    "data.neighbours",
)


# Of which none exceeds 1.
SHARES = (
    *("embedding_dropout", "sfl_share", "sfl_graph_share"),
    *("attack_ratio", "attack_alpha", "attack_share"),
)
SIGNED = ("attack_lambda",)  # which may be negative
# Optimisers of the server's kind that a factory may want, and the rate of each.
SERVER_OPTIMIZERS = {"server_optimizer": "server_lr", "novel_optimizer": "new_client_lr"}


class Experiment(NamedTuple):
    """The parts of a federation, ready for `program.make_program`."""

    federation: Federation
    model: ClientModel
    build: Callable[[dict[str, Any], Any], Algorithm]  # (hparams, rounds played) -> Algorithm
    hparams: dict[str, float]  # the floats that the algorithm reads, and no others


def load_federation(config: ConfigDict) -> Federation:
    """Loads the data that a configuration names.

    Raises:
      ValueError: a field or the data cannot be; one line with field, value and remedy.
      FileNotFoundError: a data file is missing; one line says which and where it belongs.
    """
    check_values(config)
    dataset = pick(DATASETS, config.data.name, "data.name")
    root = config.data.root or str(default_root())
    fields = {**config.data, "root": root, "seed": config.seed}
    return arrange(config, dataset(**arguments(dataset, fields)))


def arrange(config: ConfigDict, federation: Federation) -> Federation:
    """Gives a federation the relations, new clients and attackers that are asked for.

    Raises:
      ValueError: as `load_federation`.
    """
    check_values(config)
    relate = pick(GRAPHS, config.data.graph, "data.graph")
    federation = relate(federation, **arguments(relate, config.data))
    if config.new_clients.fraction:
        federation = hold_out(
            federation,
            fraction=config.new_clients.fraction,
            graph=config.new_clients.graph,
            seed=config.seed,
        )
    if config.attack.name:
        federation = attacks.with_ranks(
            federation, clients=config.attack.clients, seed=config.seed
        )
    return federation


def build_experiment(config: ConfigDict, federation: Federation) -> Experiment:
    """Builds a configuration's method and client model for a federation.

    Raises:
      ValueError: a field has a value that cannot be; one line with field, value and remedy.
    """
    check_values(config)
    factory = pick(ALGORITHMS, config.algorithm.name, "algorithm.name")
    modeller = pick(MODELS, config.model.name, "model.name")
    optimizers = {
        side: pick(OPTIMIZERS, config[f"{side}_optimizer"], f"{side}_optimizer")
        for side in ("client", "server")
    }
    attack, defence = (
        pick(choices, config[part].name, f"{part}.name") if config[part].name else None
        for part, choices in (("attack", attacks.ATTACKS), ("defence", defences.DEFENCES))
    )

    num_clients = len(federation.clients) - federation.new_clients
    if config.cohort_size > num_clients:
        raise ValueError(
            f"cohort_size={config.cohort_size} exceeds the {num_clients} clients that "
            f"train on {federation.name}; set --config.cohort_size to at most {num_clients}"
        )
    fields = {
        **config.model,
        "inputs": tree.take(federation.data.train, 0).rows(np.arange(1)).x.shape[1:],
        "outputs": federation.outputs,
        "task": task_of(federation.task, federation.units),
    }

    def client_model(hparams, played):
        offered = {**fields, **hparams, "played": played}
        return modeller(**arguments(modeller, offered))

    def optimizer(side, hparams, rate):
        prefix = f"{side}_"
        own = {k.removeprefix(prefix): v for k, v in hparams.items() if k.startswith(prefix)}
        factory = optimizers[side]
        return factory(**arguments(factory, own | {"lr": hparams[rate]}))

    def build(hparams, played):
        model = client_model(hparams, played)
        client_optimizer = optimizer("client", hparams, "client_lr")
        train = sgd_trainer(
            client_optimizer, steps=config.local_steps, batch_size=config.batch_size
        )
        sizes = {name: config[name] for name in ("local_steps", "batch_size", "server_steps")}
        new_clients = {"novel_code": config.new_clients.embedding}
        offered = {**config.algorithm, **sizes, **new_clients, **hparams}
        for name, rate in SERVER_OPTIMIZERS.items():
            if name in wanted(factory):
                offered[name] = optimizer("server", hparams, rate)
        algorithm = factory(model, train, **arguments(factory, offered))
        if config.tuning.part:
            algorithm = tuned(algorithm, model, hparams)
        return with_attack_and_defence(algorithm, hparams)

    def tuned(algorithm, model, hparams):
        tuning_optimizer = optimizer("client", hparams, "tuning_lr")
        tune = sgd_trainer(
            tuning_optimizer, steps=config.tuning.steps, batch_size=config.batch_size
        )
        if config.tuning.epochs:
            tune = epoch_trainer(
                tuning_optimizer, epochs=config.tuning.epochs, batch_size=config.batch_size
            )
        return finetuned(algorithm, model, tune, tuning_part=config.tuning.part)

    def with_attack_and_defence(algorithm, hparams):
        """The method with attackers and a defence, if there are any: the wire leads by both."""
        if defence:
            made = defence(**arguments(defence, {**config.defence, **hparams}))
            algorithm = defences.defended(algorithm, config.defence.name, made)
        if attack:
            classes = federation.outputs if federation.task == "classification" else 0
            told = {"train": federation.data.train, "classes": classes}
            made = attack(**arguments(attack, {**config.attack, **told, **hparams}))
            algorithm = attacks.attacked(
                algorithm, made, ratio=hparams["attack_ratio"], num_clients=num_clients
            )
        return algorithm

    read = {*wanted(factory), *wanted(modeller)} | {
        f"client_{name}" for name in wanted(optimizers["client"])
    }
    for name, rate in SERVER_OPTIMIZERS.items():
        if name in wanted(factory):
            own = {f"server_{field}" for field in wanted(optimizers["server"])}
            read |= own - {"server_lr"} | {rate}
    if config.tuning.part:
        read.add("tuning_lr")
    if defence:
        read |= {*wanted(defence)}
    if attack:
        read |= {*wanted(attack), "attack_ratio"}
    hparams = {k: float(v) for k, v in sorted(config.hparams.items()) if k in read}
    # So that a factory refuses its settings here, and not inside a trace.
    algorithm = build(hparams, 0)
    if defence:
        defences.check_defence(
            algorithm,
            config.defence.name,
            federation.data.graph,
            attackers=config.defence.attackers,
            cohort_size=config.cohort_size,
        )
    if algorithm.relational and not len(federation.data.graph.senders):
        raise ValueError(
            f"algorithm.name={config.algorithm.name!r} needs relations between clients, of "
            f"which {federation.name} has none; add edges to the file, or set "
            f"--config.data.graph=knn"
        )
    return Experiment(federation, client_model(hparams, 0), build, hparams)


def variant_of(config: ConfigDict) -> str:
    """The name that a results table gives a configuration's method."""
    name = config.algorithm.name.replace("_", "-")
    if name == "panacea" and config.algorithm.layer != "sage":
        name += f"-{config.algorithm.layer}"
    if config.algorithm.name == "panacea" and config.hparams.lambda_d == 0:
        name += "-gn"
    tuned = {
        "": "",
        "whole": "-finetune",
        "head": "-finetune-head",
        "new_head": "-simple-tuning",
    }
    return name + tuned.get(config.tuning.part, "")


def wanted(function: Callable) -> list[str]:
    """The names of a factory's keyword-only arguments."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def arguments(function: Callable, offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the `offered` values that a factory names in its keyword-only arguments."""
    missing = [name for name in wanted(function) if name not in offered]
    if missing:
        raise ValueError(
            f"{function.__name__} wants {missing[0]!r}, which no configuration field offers; "
            f"add it to configs/base.py"
        )
    return {name: offered[name] for name in wanted(function)}


def pick(choices: dict[str, Any], name: str, field: str) -> Any:
    """The choice of that name, or a ValueError that lists them all."""
    if name not in choices:
        raise ValueError(f"{field}={name!r} is unknown; choose from {', '.join(choices)}")
    return choices[name]


def check_values(config: ConfigDict) -> None:
    """Refuses values that no method or data set could mean."""
    for field in COUNTS:
        value = functools.reduce(getattr, field.split("."), config)
        if value < 1:
            raise ValueError(
                f"{field}={value} must be at least 1; set --config.{field}=1 or more"
            )
    for field in (
        "new_clients.rounds",
        "tuning.epochs",
        "clients_per_eval",
        "defence.attackers",
    ):
        value = functools.reduce(getattr, field.split("."), config)
        if value < 0:
            raise ValueError(f"{field}={value} is negative; set --config.{field}=0 or more")
    if not 0 <= config.seed < 2**32:
        raise ValueError(f"seed={config.seed} must be in [0, 2**32); set --config.seed=0 or so")
    for name, value in config.hparams.items():
        if not math.isfinite(value) or (value < 0 and name not in SIGNED):
            raise ValueError(
                f"hparams.{name}={value} must be finite and not negative; "
                f"set --config.hparams.{name} to 0 or more"
            )
        if name in SHARES and value > 1:
            raise ValueError(
                f"hparams.{name}={value} is a share; set --config.hparams.{name} in [0, 1]"
            )
    named = [str(client) for client in config.attack.clients]
    ratio = config.hparams.attack_ratio
    if not config.attack.name and (named or ratio):
        given = (
            f"attack.clients={','.join(named)}" if named else f"hparams.attack_ratio={ratio}"
        )
        raise ValueError(
            f"{given} without an attack; set --config.attack.name to one of "
            f"{', '.join(attacks.ATTACKS)}"
        )
    if named and ratio:
        raise ValueError(
            f"attack.clients={','.join(named)} and hparams.attack_ratio={ratio} both say who "
            f"attacks; leave one out"
        )
