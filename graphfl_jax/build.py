"""Builds the parts of a federation from a configuration, of which all fields are checked.

Of any other, `configs.values.complete` checks them first.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import fit, memory, tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.learned_relations import learn_relations
from graphfl_jax.algorithms.tuning import finetune, tuning_trainer
from graphfl_jax.algorithms.veto import veto, with_veto
from graphfl_jax.architecture import check_architecture
from graphfl_jax.configs.fields import POISSON, fields_of
from graphfl_jax.configs.values import complete, values_of
from graphfl_jax.core import Algorithm, ClientModel, FederatedData
from graphfl_jax.data import DATASETS, GRAPHS
from graphfl_jax.data.federation import Federation
from graphfl_jax.data.files import default_root
from graphfl_jax.data.graphs import learning
from graphfl_jax.data.new_clients import CHOSEN_BY, TOGETHER, hold_out
from graphfl_jax.declarations import Source
from graphfl_jax.metrics import task_of, with_metrics
from graphfl_jax.models import MODELS
from graphfl_jax.models.architectures import deal_out
from graphfl_jax.models.objectives import with_precision
from graphfl_jax.program import ROUNDS_PER_EXECUTION
from graphfl_jax.rounds import (
    Group,
    Poison,
    group_clients,
    groups_together,
    message_bytes,
    with_sample,
)
from graphfl_jax.wire import accounting, attacks, defences, poisson
from graphfl_jax.wire.availability import AVAILABILITIES, STRAGGLERS, in_turn
from graphfl_jax.wire.clock import CLOCKS, Clock, law_of
from graphfl_jax.wire.compression import (
    COMPRESSORS,
    Compressor,
    check_compression,
    feedback_of,
    with_compression,
)
from graphfl_jax.wire.privacy import PRIVACIES, check_privacy, with_privacy

# What a factory gets by name, if it has a parameter of this name without a declaration.
OF_MODELS = ("inputs", "outputs", "task", "played")
OF_ALGORITHMS = (
    "model",
    "models",
    "unseen",
    *OF_MODELS,
    "model_name",
    "local_steps",
    "batch_size",
    "num_clients",
    "train_data",
    "classes",
    "clock",
    "cohort_size",
)
OF_DATASETS = ("root", "seed")
OF_RELATIONS = ("federation", "seed")
OF_PARTITIONS = ("seed",)
OF_ATTACKS = ("train_data", "classes", "num_clients")


class Experiment(NamedTuple):
    """The parts of a federation, ready for `program.Program`."""

    federation: Federation
    model: ClientModel  # of the first architecture; its task is that of all
    build: Callable[[dict[str, Any], Any], Algorithm]  # (hparams, rounds played) -> Algorithm
    poison: Callable[[dict[str, Any]], Poison]  # hparams -> what malicious clients do
    hparams: dict[str, float]  # the traced floats
    groups: tuple[Group, ...]  # the clients of each architecture that train
    joined: tuple[Group, ...] = ()  # after new clients have joined, see `rounds.group_clients`
    # `build` and groups of rounds that new clients play together with all others
    together: tuple[Callable, tuple[Group, ...]] | None = None
    on_host: bool = False  # whether the device has only the examples of the clients of a round


def federation(config: ConfigDict) -> Federation:
    """The data of a configuration, as its runs have them.

    `describe` of what it returns says what they consist of, and `plot` draws them.

    Args:
      config: see `graphfl_jax.configs`.

    Raises:
      ValueError: a field or the data does not fit; one line with field, value and remedy.
      FileNotFoundError: a data file is missing; one line says which, and where it belongs.
    """
    return load_federation(complete(config))


def load_federation(config: ConfigDict) -> Federation:
    """Loads the data that a configuration names.

    Raises:
      ValueError: a field or the data does not fit; one line with field, value and remedy.
      FileNotFoundError: a data file is missing; one line says which, and where it belongs.
    """
    root = config.data.root or str(default_root())
    source = Source(values_of(config)[0], {"root": root, "seed": config.seed})
    federation = source.make(DATASETS[config.data.name], "data")
    _check_made(f"data.name={config.data.name!r}", federation, Federation, "from_arrays(x, y)")
    return arrange(config, federation)


def arrange(config: ConfigDict, federation: Federation) -> Federation:
    """Gives a federation the relations, new clients and attackers of a configuration.

    Raises:
      ValueError: as `load_federation`.
    """
    if len(federation.labels) not in (0, federation.outputs):
        raise ValueError(
            f"{federation.name} has {len(federation.labels)} names of labels and "
            f"{federation.outputs} outputs; name each output, or none"
        )
    values, _ = values_of(config)

    def apply(federation, factory, section, **supplied):
        supplied |= {"federation": federation, "seed": config.seed}
        return Source(values, supplied).make(factory, section)

    def relate(federation):
        related = apply(federation, GRAPHS[config.data.graph], "data")
        made_by = "data.federation.with_graph(federation, graph)"
        _check_made(f"data.graph={config.data.graph!r}", related, Federation, made_by)
        return related

    joins = any(values[field] for field in CHOSEN_BY)
    # Which training clients are related must then not depend on the new clients.
    inductive = joins and config.new_clients.graph == "inductive"
    if not inductive:
        federation = relate(federation)
    if joins:
        fraction = config.new_clients.fraction
        federation = apply(federation, hold_out, "new_clients", fraction=fraction)
    if inductive:
        federation = relate(federation)
    if config.attack.name:
        federation = apply(federation, attacks.with_attack_order, "attack")
    return federation


def build_experiment(config: ConfigDict, federation: Federation) -> Experiment:
    """Builds a configuration's method and client model, and checks that a federation has and
    this machine can hold what they need.

    Raises:
      ValueError: a field does not fit; one line with field, value and remedy.
    """
    experiment = assemble(config, federation)
    num_clients = federation.training_clients
    # So that a factory refuses its settings here, and not inside a trace.
    algorithm = experiment.build(experiment.hparams, 0)
    experiment.poison(experiment.hparams)
    fit.check_symbols(experiment.model, config.model.name, federation)
    fit.check_needs(algorithm, config, federation, num_clients)
    fit.check_splits(config, federation)
    fit.check_stopping(config, federation)
    fit.check_new_clients(config, algorithm)
    fit.check_attendance(config, algorithm)
    fit.check_schedules(config)
    steps = {"local_steps": config.local_steps}
    if config.tuning.part and not config.tuning.epochs:
        steps["tuning.steps"] = config.tuning.steps
    exchange = algorithm.first_exchange(federation.data, len(experiment.groups))
    _check_wire(config, algorithm, experiment, exchange)
    on_host = fit.is_on_host(config, algorithm, experiment, exchange)
    experiment = experiment._replace(on_host=on_host)
    held = 2 * ROUNDS_PER_EXECUTION * experiment.groups[0].cohort_size
    memory.check_run(
        algorithm,
        experiment.groups,
        federation.data,
        exchange,
        held=held if experiment.on_host else 0,
        steps=steps,
        batch_size=config.batch_size,
        loaded=f"data.name={federation.name}",
        sized=_largest_size(config),
    )
    fit.warn_of_idle_parts(config, exchange)
    return experiment


def _check_wire(config, algorithm, experiment, exchange):
    """Checks what happens to uploads on their way: attack, defence, privacy and compression."""
    data = experiment.federation.data
    fit.check_release(config, algorithm)
    if config.attack.name and config.attack.clients and config.hparams.attack_ratio:
        raise ValueError(
            f"attack.clients={','.join(map(str, config.attack.clients))} and "
            f"hparams.attack_ratio={config.hparams.attack_ratio} both choose attackers; leave "
            f"one out"
        )
    if config.defence.name:
        defences.check_defence(
            algorithm,
            config.defence.name,
            data,
            method=config.algorithm.name,
            attackers=config.defence.get("attackers", 0),
            cohort_size=min(group.cohort_size for group in experiment.groups),
        )
    if config.privacy.name:
        names = {"method": config.algorithm.name, "name": config.privacy.name}
        check_privacy(algorithm, exchange, data, **names)
        if config.privacy.name in accounting.ACCOUNTED:
            accounting.check_accountant(config)
    if config.compression.name:
        names = {"method": config.algorithm.name, "name": config.compression.name}
        check_compression(algorithm, exchange, **names)


def _check_made(named, value, kind, example):
    """Refuses what a registered function returns in place of a federation or a client model."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{named} returns a {type(value).__name__}; return a {kind.__name__}, such as "
            f"graphfl_jax.{example}"
        )


def assemble(config: ConfigDict, federation: Federation) -> Experiment:
    """Builds a configuration's method and client model for examples of a federation's shapes.

    Raises:
      ValueError: a field does not fit; one line with field, value and remedy.
    """
    num_clients = federation.training_clients
    values, cohort_size = values_of(config)[0], config.cohort_size
    if cohort_size == fields_of(values)["cohort_size"].default:  # which nobody has chosen
        cohort_size = min(cohort_size, num_clients)
    if cohort_size > num_clients:
        raise ValueError(
            f"cohort_size={config.cohort_size} exceeds the {num_clients} clients that train on "
            f"{federation.name}; set --config.cohort_size={num_clients} or less"
        )
    hparams = {name: float(value) for name, value in sorted(config.hparams.items())}
    supplied = _arguments_of_factories(config, federation)
    parts = _Parts(config, values, supplied, federation.data)
    dealt = list(parts.deal_models(hparams, 0))
    names = _assigned_names(dealt, num_clients, federation.new_clients)
    trained = tuple(dict.fromkeys(names[:num_clients]))
    unseen = tuple(name for name in dict.fromkeys(names) if name not in trained)
    fit.check_method(config, trained, unseen)
    models = [_by_name(dealt)[name] for name in trained + unseen]
    for model in models:
        fit.check_outputs(model, config.model.name, federation)
    fit.check_sample(config, num_clients)
    size = cohort_size
    if config.cohort == POISSON:
        fit.check_poisson(config, trained)
        size = poisson.places(cohort_size, num_clients)
    groups, joined = (
        _at_once(config, models, some) for some in group_clients(names, num_clients, size)
    )
    groups = with_sample(groups, num_clients, config.eval.clients)
    parts = parts._replace(
        trained=trained, unseen=unseen, groups=groups, cohort_size=cohort_size
    )
    together = None
    if config.new_clients.get("join") == TOGETHER:
        fit.check_together(unseen)
        total = len(federation.clients)
        whole = groups_together(groups, joined, total)
        of_all = parts._replace(supplied=supplied | {"num_clients": total}, groups=whole)
        together = of_all.build, whole
    made = (federation, models[0], parts.build, parts.poison, hparams, groups, joined)
    return Experiment(*made, together)


def _arguments_of_factories(config, federation):
    """What factories of models, methods, defences and attacks get by name."""
    first = tree.take(federation.data.train, 0).rows(np.arange(1))
    task = task_of(federation.task, federation.units, federation.labels)
    return {
        "inputs": first.x.shape[1:],
        "outputs": federation.outputs,
        "task": with_metrics(task, config.metrics, of=federation.task, data=federation.name),
        "model_name": config.model.name,
        "local_steps": config.local_steps,
        "batch_size": config.batch_size,
        "num_clients": federation.training_clients,
        "client_names": federation.clients,
        "train_data": federation.data.train,
        "classes": federation.outputs if federation.task == "classification" else 0,
    }


class _Parts(NamedTuple):
    """Makes the parts of an experiment from the values of its traced floats."""

    config: ConfigDict
    values: dict[str, Any]  # its fields by dotted name
    supplied: dict[str, Any]
    data: FederatedData
    trained: tuple[str, ...] = ()  # names of the architectures of clients that train
    unseen: tuple[str, ...] = ()  # names of those that only new clients have
    groups: tuple[Group, ...] = ()
    cohort_size: int = 0  # clients in a round, or their mean number

    def source(self, hparams: dict[str, Any], **supplied: Any) -> Source:
        traced = {f"hparams.{name}": value for name, value in hparams.items()}
        return Source(self.values | traced, self.supplied | supplied)

    def deal_models(self, hparams: dict[str, Any], played: Any) -> Iterator[list[ClientModel]]:
        """Those that are assigned to all clients; or to training clients, and to new ones."""
        config, source = self.config, self.source(hparams, played=played)
        yield _models(config, source)
        architectures = config.new_clients.get("architectures")
        if architectures:
            values = source.values | {"model.architectures": architectures}
            yield _models(config, source._replace(values=values))

    def build(self, hparams: dict[str, Any], played: Any) -> Algorithm:
        """The method, fine-tuned and defended. `played` is the number of past rounds."""
        config, by_name = self.config, _by_name(self.deal_models(hparams, played))
        models, unseen = (
            tuple(by_name[name] for name in names) for names in (self.trained, self.unseen)
        )
        source = self.source(hparams, models=models, unseen=unseen, played=played)
        clock = None
        if config.clock.name:
            clock = source.make(CLOCKS[config.clock.name], "clock")
        source.supplied.update(clock=clock, steps=self.steps, cohort_size=self.cohort_size)
        if len(models) == 1:
            source.supplied["model"] = models[0]
        algorithm = source.make(ALGORITHMS[config.algorithm.name].factory, "algorithm")
        if config.data.graph == "learned":
            made = source.make(learning, "data")
            of_run = {name: source.supplied[name] for name in ("num_clients", "played")}
            algorithm = learn_relations(algorithm, made, method=config.algorithm.name, **of_run)
        if config.tuning.part:
            tune = source.make(tuning_trainer, "tuning")
            algorithm = finetune(algorithm, tune, tuning_part=config.tuning.part)
        if config.defence.veto:
            algorithm = with_veto(algorithm, source.make(veto, "defence"))
        name = config.privacy.name
        if name:
            private = source.make(PRIVACIES[name], "privacy")
            sizes = tuple(float(group.cohort_size) for group in self.groups)
            numbers = (float(self.cohort_size),) if config.cohort == POISSON else sizes
            algorithm = with_privacy(algorithm, name, private, numbers)
        name = config.compression.name
        if name:
            compressor = source.make(COMPRESSORS[name], "compression")
            made_by = "wire.compression.Compressor(read, bits)"
            _check_made(f"compression.name={name!r}", compressor, Compressor, made_by)
            feedback = source.make(feedback_of, "compression")
            uploads = []
            if feedback:
                uploads = algorithm.first_exchange(self.data, len(self.groups)).uploads
            algorithm = with_compression(algorithm, compressor, feedback, uploads)
        name = config.defence.name
        if name:
            defence = source.make(defences.DEFENCES[name], "defence")
            algorithm = defences.with_defence(algorithm, name, defence, self.groups, self.data)
        return self.attended(algorithm, source, clock)

    def attended(self, algorithm: Algorithm, source: Source, clock: Clock | None) -> Algorithm:
        """A method whose clients may be absent, take fewer steps, or let the server wait."""
        config, laws, up = self.config, [], None
        if config.cohort == POISSON:
            laws.append(poisson.poisson_cohorts(self.cohort_size))
        if config.availability.name:
            made = source.make(AVAILABILITIES[config.availability.name], "availability")
            laws.append(made.law)
            up = made.up
        if config.stragglers.name:
            laws.append(source.make(STRAGGLERS[config.stragglers.name], "stragglers"))
        if clock is not None:
            sent = [sum(both) for both in message_bytes(algorithm, self.data, len(self.groups))]
            laws.append(law_of(clock, self.steps, sent, algorithm.server.seconds))
        return algorithm.replacing(up=up, attend=in_turn(laws), clocked=clock is not None)

    def steps(self, weights: Any) -> Any:
        """The local steps [M] float32 of clients with so many examples [M]."""
        epochs = self.config.get("local_epochs", 0)
        if not epochs:
            return jnp.full(len(weights), float(self.config.get("local_steps", 1)))
        return epochs * jnp.ceil(jnp.maximum(weights, 1.0) / self.config.batch_size)

    def poison(self, hparams: dict[str, Any]) -> Poison:
        """What malicious clients do."""
        name, source = self.config.attack.name, self.source(hparams)
        if not name:
            return Poison()
        attack = source.make(attacks.ATTACKS[name], "attack")
        return attacks.poison_with(attack, source.make(attacks.attackers, "attack"))


def _models(config, source):
    """The client models that the factory of a configuration makes."""
    made = source.make(MODELS[config.model.name], "model")
    models = made if isinstance(made, tuple) else (made,)
    named = f"model.name={config.model.name!r}"
    for model in models:
        _check_made(named, model, ClientModel, "client_model(body=...)")
        if len(models) > 1 and model.architecture is None:
            raise ValueError(
                f"{named} returns several client models, and one does not describe its "
                f"layers; give each an architecture with a name of its own"
            )
    return [with_precision(model, config.precision) for model in models]


def _name(model):
    return model.architecture.name if model.architecture else ""


def _by_name(dealt):
    """The models of several lists by the names of their architectures."""
    return {_name(model): model for models in dealt for model in models}


def _assigned_names(dealt, training, new_clients):
    """The name of the architecture of each client; those of the new clients are last.

    Args:
      dealt: models for all clients, or in two lists for those that train and for new ones.
      training: number of clients that train.
    """
    key = jax.eval_shape(jax.random.key, 0)
    for model in _by_name(dealt).values():
        if model.architecture is not None:
            shapes = jax.eval_shape(model.init, key)
            check_architecture(model.architecture, shapes)
    for_all, *for_new = [[_name(model) for model in models] for models in dealt]
    field = {"field": "model.architectures", "who": "clients"}
    if not for_new:
        return deal_out(for_all, training + new_clients, **field)
    of_new = {"field": "new_clients.architectures", "who": "new clients"}
    return deal_out(for_all, training, **field) + deal_out(*for_new, new_clients, **of_new)


def _largest_size(config):
    """The largest integer among the settings of model and method, as FIELD=VALUE."""
    sizes = {f"model.name={config.model.name!r}": 0}
    for section in ("model", "algorithm"):
        for field, value in config[section].items():
            numbers = value if isinstance(value, tuple) else (value,)
            integers = (n for n in numbers if isinstance(n, int))
            sizes[f"{section}.{field}={value}"] = max(integers, default=0)
    return max(sizes, key=sizes.get)


def _at_once(config, models, groups):
    """The groups with the numbers of their clients that a device trains at once."""
    on_cpu = jax.default_backend() == "cpu"
    return tuple(
        group._replace(at_once=config.client_chunk or (model.at_once if on_cpu else 0))
        for group, model in zip(groups, models, strict=False)  # of `joined`, all
    )
