"""Builds the parts of a federation from a configuration; below, only `factories` reads one."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import memory, tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.tuning import finetuned, tuning_trainer
from graphfl_jax.architecture import check_architecture
from graphfl_jax.configs.values import changed, checked
from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.data import DATASETS, GRAPHS
from graphfl_jax.data.federation import Federation
from graphfl_jax.data.files import default_root
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.factories import arguments, made
from graphfl_jax.fit import (
    check_method,
    check_needs,
    check_new_clients,
    check_outputs,
    check_splits,
)
from graphfl_jax.metrics import task_of, with_metrics
from graphfl_jax.models import MODELS
from graphfl_jax.models.architectures import deal_out
from graphfl_jax.models.objectives import with_precision
from graphfl_jax.robustness import attacks, defences
from graphfl_jax.rounds import Group, Poison, grouped

# What a factory gets by name, if it has a parameter of this name without a declaration.
OF_MODELS = ("inputs", "outputs", "task", "played")
OF_ALGORITHMS = (
    *("model", "models", "unseen", *OF_MODELS, "model_name", "local_steps", "batch_size"),
    *("num_clients", "train_data", "classes"),
)
OF_DATASETS = ("root", "seed")


class Experiment(NamedTuple):
    """The parts of a federation, ready for `program.make_program`."""

    federation: Federation
    model: ClientModel  # of the first architecture; its task is that of all
    build: Callable[[dict[str, Any], Any], Algorithm]  # (hparams, rounds played) -> Algorithm
    poison: Callable[[dict[str, Any]], Poison]  # hparams -> what malicious clients do
    hparams: dict[str, float]  # the traced floats
    groups: tuple[Group, ...]  # the clients of each architecture that train
    joined: tuple[Group, ...] = ()  # all after new clients have joined, see `rounds.grouped`


def load_federation(config: ConfigDict) -> Federation:
    """Loads the data that a configuration names.

    Raises:
      ValueError: a field or the data does not fit; one line with field, value and remedy.
      FileNotFoundError: a data file is missing; one line says which, and where it belongs.
    """
    config = checked(config)
    root = config.data.root or str(default_root())
    supplied = {"root": root, "seed": config.seed}
    federation = made(DATASETS[config.data.name], config, "data", supplied)
    _check_made(f"data.name={config.data.name!r}", federation, Federation, "from_arrays(x, y)")
    return arrange(config, federation)


def arrange(config: ConfigDict, federation: Federation) -> Federation:
    """Gives a federation the relations, new clients and attackers of a configuration.

    Raises:
      ValueError: as `load_federation`.
    """
    config = checked(config)
    if len(federation.labels) not in (0, federation.outputs):
        raise ValueError(
            f"{federation.name} has {len(federation.labels)} names of labels and "
            f"{federation.outputs} outputs; name each output, or none"
        )
    relate, fraction = GRAPHS[config.data.graph], config.new_clients.fraction

    def related(federation):
        return relate(federation, **arguments(relate, config, "data", {}, skip=1))

    def drawn(part, name, **supplied):
        return made(part, config, name, {"seed": config.seed, **supplied})

    # Which training clients are related must then not depend on the new clients.
    inductive = fraction and config.new_clients.graph == "inductive"
    if not inductive:
        federation = related(federation)
    if fraction:
        federation = drawn(hold_out, "new_clients", federation=federation, fraction=fraction)
    if inductive:
        federation = related(federation)
    if config.attack.name:
        return drawn(attacks.with_attack_order, "attack", federation=federation)
    return federation


def build_experiment(config: ConfigDict, federation: Federation) -> Experiment:
    """Builds a configuration's method and client model, and checks that a federation has and
    this machine can hold what they need.

    Raises:
      ValueError: a field does not fit; one line with field, value and remedy.
    """
    config = checked(config)
    experiment = assemble(config, federation)
    num_clients = len(federation.clients) - federation.new_clients
    # So that a factory refuses its settings here, and not inside a trace.
    algorithm = experiment.build(experiment.hparams, 0)
    experiment.poison(experiment.hparams)
    check_needs(algorithm, config, federation, num_clients)
    check_splits(config, federation)
    check_new_clients(config)
    if config.attack.name:
        _check_attackers(config)
    if config.defence.name:
        defences.check_defence(
            *(algorithm, config.defence.name, federation.data.graph),
            method=config.algorithm.name,
            attackers=config.defence.get("attackers", 0),
            cohort_size=min(group.cohort_size for group in experiment.groups),
        )
    steps = {"local_steps": config.local_steps}
    if config.tuning.part and not config.tuning.epochs:
        steps["tuning.steps"] = config.tuning.steps
    memory.check_run(
        *(algorithm, experiment.groups, federation.data),
        steps=steps,
        batch_size=config.batch_size,
        loaded=f"data.name={federation.name}",
        sized=_largest_size(config),
    )
    return experiment


def _check_made(named, value, kind, example):
    """Refuses what a registered function returns in place of a federation or a client model."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{named} returns a {type(value).__name__}; return a {kind.__name__}, such as "
            f"graphfl_jax.{example}"
        )


def _check_attackers(config):
    named = [str(client) for client in config.attack.clients]
    ratio = config.hparams.attack_ratio
    if named and ratio:
        raise ValueError(
            f"attack.clients={','.join(named)} and hparams.attack_ratio={ratio} both choose "
            f"attackers; leave one out"
        )


def assemble(config: ConfigDict, federation: Federation) -> Experiment:
    """Builds a configuration's method and client model for examples of a federation's shapes.

    Raises:
      ValueError: a field does not fit; one line with field, value and remedy.
    """
    config = checked(config)
    num_clients = len(federation.clients) - federation.new_clients
    if config.cohort_size > num_clients:
        raise ValueError(
            f"cohort_size={config.cohort_size} exceeds the {num_clients} clients that train on "
            f"{federation.name}; set --config.cohort_size={num_clients} or less"
        )
    first = tree.take(federation.data.train, 0).rows(np.arange(1))
    supplied = {
        "inputs": first.x.shape[1:],
        "outputs": federation.outputs,
        "task": with_metrics(
            *(task_of(federation.task, federation.units, federation.labels), config.metrics),
            of=federation.task,
            data=federation.name,
        ),
        "model_name": config.model.name,
        "local_steps": config.local_steps,
        "batch_size": config.batch_size,
        "num_clients": num_clients,
        "train_data": federation.data.train,
        "classes": federation.outputs if federation.task == "classification" else 0,
    }
    make = functools.partial(made, config=config)
    of_new = config.new_clients.get("architectures")
    configs = [config, changed(config, {"model.architectures": of_new})] if of_new else [config]

    def dealt_models(hparams, played):
        """Those that are assigned to all clients; or to training clients, and to new ones."""
        values = supplied | {"played": played}
        for own in configs:
            dealt = made(MODELS[own.model.name], own, "model", values, hparams)
            models = dealt if isinstance(dealt, tuple) else (dealt,)
            named = f"model.name={own.model.name!r}"
            for model in models:
                _check_made(named, model, ClientModel, "client_model(body=...)")
                if len(models) > 1 and model.architecture is None:
                    raise ValueError(
                        f"{named} returns several client models, and one does not describe its "
                        f"layers; give each an architecture with a name of its own"
                    )
            yield [with_precision(model, config.precision) for model in models]

    def build(hparams, played):
        known = _by_name(dealt_models(hparams, played))
        models, unseen = (tuple(known[name] for name in own) for own in (trained, others))
        values = supplied | {"models": models, "unseen": unseen, "played": played}
        if len(models) == 1:
            values |= {"model": models[0]}
        algorithm = make(
            *(ALGORITHMS[config.algorithm.name],),
            section="algorithm",
            supplied=values,
            hparams=hparams,
        )
        if config.tuning.part:
            tune = make(tuning_trainer, section="tuning", supplied=values, hparams=hparams)
            algorithm = finetuned(algorithm, tune, tuning_part=config.tuning.part)
        return with_defence(algorithm, values, hparams)

    def with_defence(algorithm, values, hparams):
        name = config.defence.name
        if not name:
            return algorithm
        factory = defences.DEFENCES[name]
        defence = make(factory, section="defence", supplied=values, hparams=hparams)
        return defences.defended(algorithm, name, defence, groups)

    def poison(hparams):
        if not config.attack.name:
            return Poison()
        parts = {"section": "attack", "supplied": supplied, "hparams": hparams}
        attack = make(attacks.ATTACKS[config.attack.name], **parts)
        return attacks.poison_with(attack, make(attacks.attackers, **parts))

    hparams = {name: float(value) for name, value in sorted(config.hparams.items())}
    dealt = list(dealt_models(hparams, 0))
    names = _named(dealt, num_clients, federation.new_clients)
    trained = tuple(dict.fromkeys(names[:num_clients]))
    others = tuple(name for name in dict.fromkeys(names) if name not in trained)
    check_method(config, trained, others)
    models = [_by_name(dealt)[name] for name in trained + others]
    for model in models:
        check_outputs(model, config.model.name, federation)
    groups, joined = (
        _at_once(config, models, own) for own in grouped(names, num_clients, config.cohort_size)
    )
    return Experiment(federation, models[0], build, poison, hparams, groups, joined)


def _name(model):
    return model.architecture.name if model.architecture else ""


def _by_name(dealt):
    """The models of several lists by the names of their architectures."""
    return {_name(model): model for models in dealt for model in models}


def _named(dealt, training, new_clients):
    """The name of the architecture of each client; those of the new clients are last.

    Args:
      dealt: models for all clients, or in two lists for those that train and for new ones.
      training: number of clients that train.
      new_clients: number of new clients.
    """
    for model in _by_name(dealt).values():
        if model.architecture is not None:
            shapes = jax.eval_shape(model.init, jax.random.key(0))
            check_architecture(model.architecture, shapes)
    for_all, *for_new = [[_name(model) for model in models] for models in dealt]
    field = {"field": "model.architectures", "who": "clients"}
    if not for_new:
        return deal_out(for_all, training + new_clients, **field)
    of_new = {"field": "new_clients.architectures", "who": "new clients"}
    return deal_out(for_all, training, **field) + deal_out(*for_new, new_clients, **of_new)


def _largest_size(config):
    """The largest integer among the settings of model and method, as FIELD=VALUE."""
    found = {f"model.name={config.model.name!r}": 0}
    for section in ("model", "algorithm"):
        for field, value in config[section].items():
            numbers = value if isinstance(value, tuple) else (value,)
            integers = (n for n in numbers if isinstance(n, int))
            found[f"{section}.{field}={value}"] = max(integers, default=0)
    return max(found, key=found.get)


def _at_once(config, models, groups):
    """The groups with the numbers of their clients that a device trains at once."""
    on_cpu = jax.default_backend() == "cpu"
    return tuple(
        group._replace(at_once=config.client_chunk or on_cpu * model.at_once)
        for group, model in zip(groups, models, strict=False)  # of `joined`, all
    )


def variant_of(config: ConfigDict) -> str:
    """The name that a results table gives a configuration's method."""
    name = config.algorithm.name.replace("_", "-")
    if name == "panacea":
        name += f"-{config.algorithm.layer}" * (config.algorithm.layer != "sage")
        name += "-gn" * (config.hparams.lambda_d == 0)
    if name == "pfedgat":
        name += f"-{config.algorithm.attention}" * (config.algorithm.attention != "v1")
        name += "-trained-on-test" * config.algorithm.get("paper_mode", False)
    if name == "flha-ghn":
        no_gnn = config.algorithm.get("ghn_depth") == 0
        name += "-table" * (config.algorithm.flha_generator == "table") + "-no-gnn" * no_gnn
    suffixes = {"whole": "-finetune", "head": "-finetune-head", "new_head": "-simple-tuning"}
    return name + suffixes.get(config.tuning.part, "")
