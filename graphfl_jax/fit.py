"""Checks that a method, its client models and a federation fit together.

Where they do not, a check raises a ValueError of one line.
"""

import warnings
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.architecture import layer_of
from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.values import values_of
from graphfl_jax.core import Algorithm, ClientModel, Exchange
from graphfl_jax.data.federation import Federation, input_range
from graphfl_jax.data.new_clients import ALONE, CHOSEN_BY, TOGETHER
from graphfl_jax.declarations import parameters
from graphfl_jax.memory import bytes_of, device_memory, size_text
from graphfl_jax.optimizers import scheduled_rate

# The field that makes a split, with an example of its values.
MADE_BY = {
    "val": ("val_fraction", "0.1"),
    "balanced": ("balanced_test", "100"),
    "pooled": ("pooled_test", "true"),
}
# Fields that count rounds from the first on, and what happens in none of these.
FIRST_ROUNDS = {
    "algorithm.cfl_warmup": "no cluster is split",
    "attack.honest_rounds": "no client attacks",
}


def check_method(config: ConfigDict, trained: tuple[str, ...], unseen: tuple[str, ...]) -> None:
    """Checks that the method can have clients of the architectures of these names.

    Args:
      trained: those that clients train with.
      unseen: those that only new clients have.

    Raises:
      ValueError: there are several, or unseen ones, and the method cannot have them.
    """
    method, model = f"algorithm.name={config.algorithm.name!r}", config.model
    named = "model.architectures" if "architectures" in model else f"model.name={model.name!r}"
    able = _methods_with("models")
    if len(trained) > 1 and config.algorithm.name not in able:
        raise ValueError(
            f"{method} needs clients of one architecture, and {named} gives them several, "
            f"{','.join(trained)}; choose one architecture, or a method that can have "
            f"several: {', '.join(able)}"
        )
    able = _methods_with("unseen")
    if unseen and config.algorithm.name not in able:
        remedy = "let training clients have it too"
        if "architectures" in config.new_clients:
            remedy = f"set --config.new_clients.architectures to one of {', '.join(trained)}"
            if config.new_clients.architectures:
                named = "new_clients.architectures"
        raise ValueError(
            f"{method} has no model for an architecture that only new clients have, and "
            f"{named} gives them {','.join(unseen)}; {remedy}, or choose a method that can: "
            f"{', '.join(able)}"
        )


def _methods_with(name):
    """The algorithms that take a parameter."""
    return [
        algorithm
        for algorithm, method in ALGORITHMS.items()
        if any(parameter.name == name for parameter in parameters(method.factory))
    ]


def check_needs(
    algorithm: Algorithm, config: ConfigDict, federation: Federation, num_clients: int
) -> None:
    """Checks that a federation and its client models have what a method needs.

    Raises:
      ValueError: a need is not met.
    """
    method, needs = f"algorithm.name={config.algorithm.name!r}", algorithm.needs
    without = not len(federation.data.graph.senders) and config.data.graph != "none"
    if needs.relations and without:
        none = f"{method} needs relations between clients, and {federation.name} has"
        if num_clients == 1:
            raise ValueError(f"{none} one client; choose another method")
        raise ValueError(f"{none} none; add edges to the file, or set --config.data.graph=knn")
    _check_edge_weights(method, needs, federation)
    _check_held_out(method, needs.held_out, config, federation)
    if needs.parts:
        _check_objective(method, config)
    _check_heads(method, algorithm, config)
    if needs.everyone and config.cohort_size < num_clients:
        raise ValueError(
            f"{method} needs all clients in every round, and cohort_size={config.cohort_size}; "
            f"set --config.cohort_size={num_clients}"
        )
    if needs.labels and federation.task != "classification":
        several = federation.task == "multi-label classification"
        labels = "labels, one per example" if several else "labels"
        raise ValueError(
            f"{method} needs {labels}, and {federation.name} is a {federation.task}; choose "
            f"another method"
        )


def _check_edge_weights(method, needs, federation):
    """Refuses to read weights of relations that have none, and warns of own ones unread."""
    weighted = (np.asarray((federation.everyone or federation.data).graph.edges) != 1).any()
    if needs.edge_weights and not weighted:
        raise ValueError(
            f"algorithm.edge_weights=True needs relations with weights, and those of "
            f"{federation.name} have none; give edge_weight, or leave algorithm.edge_weights "
            f"out"
        )
    unread = needs.relations and not needs.edge_weights
    if unread and weighted and federation.source == "own":
        warnings.warn(
            f"{federation.name}: {method} does not read edge_weight; set "
            f"--config.algorithm.edge_weights=true, which only panacea has, or leave out "
            f"edge_weight, and the edges that should not count",
            RuntimeWarning,
            stacklevel=4,
        )


def _check_held_out(method, split, config, federation):
    """Checks the split of which clients hold examples that they do not train their model on."""
    if split == "val" and "val" not in federation.data.evals:
        raise ValueError(
            f"{method} needs a validation split, and {federation.name} has none; "
            f"{_remedy_without_val(config, federation)}"
        )
    if split == "test":
        warnings.warn(
            f"{method} trains on test examples with algorithm.paper_mode, so its test scores "
            f"are too high",
            stacklevel=4,
        )


def _remedy_without_val(config, federation):
    """How a federation gets a validation split."""
    if federation.source == "own" and not config.data.get("path"):
        return "give val_fraction=0.1 to from_arrays"
    if "val_fraction" in config.data:
        return "set --config.data.val_fraction=0.1"
    return "choose other data"


def _check_objective(method, config):
    """Refuses what changes the objective of a model, for a method that does not use it."""
    unused = {
        "precision": config.precision == "bfloat16",
        "model.augment": bool(config.model.get("augment")),
    }
    for field, is_set in unused.items():
        if is_set:
            raise ValueError(
                f"{method} trains the parts of a model by itself, and does not read {field}; "
                f"leave {field} out"
            )


def _check_heads(method, algorithm, config):
    """Checks that what treats heads apart finds some, and that fine-tuning finds a model."""
    apart = method if algorithm.needs.head else ""
    if config.tuning.part in ("head", "new_head"):
        apart = f"tuning.part={config.tuning.part!r}"
    if apart and not all(_has_head(client.model) for client in algorithm.clients):
        raise ValueError(
            f"{apart} needs client models with a head, and model.name={config.model.name!r} "
            f"has none; choose another, or give the model a head"
        )
    if config.tuning.part and any(client.predict is not None for client in algorithm.clients):
        raise ValueError(
            f"tuning.part={config.tuning.part!r} trains a client's model, and the clients of "
            f"{method} predict with more than their model; leave tuning.part empty"
        )


def check_sample(config: ConfigDict, num_clients: int) -> None:
    """Checks that there are as many clients as evaluations shall score.

    Raises:
      ValueError: there are fewer.
    """
    chosen = config.eval.clients
    if (
        chosen > num_clients
        and chosen != fields_of(values_of(config)[0])["eval.clients"].default
    ):
        raise ValueError(
            f"eval.clients={chosen} exceeds the {num_clients} clients that train; set "
            f"--config.eval.clients={num_clients} or less, or leave it out to score all"
        )


def check_splits(config: ConfigDict, federation: Federation) -> None:
    """Checks that a federation has the splits that a configuration evaluates.

    Raises:
      ValueError: one of ``eval.splits`` is missing.
    """
    splits = [*federation.data.evals, *federation.data.shared]
    if config.attack.name == "backdoor":
        splits.append("triggered")
    for name in config.eval.splits:
        field, value = MADE_BY.get(name, ("", ""))
        if name not in splits:
            remedy = f"choose from {', '.join(splits)}"
            if field in config.data:
                remedy += f", or set --config.data.{field}={value}"
            raise ValueError(
                f"eval.splits={','.join(config.eval.splits)}: {federation.name} has no split "
                f"{name!r} with this configuration; {remedy}"
            )


def check_stopping(config: ConfigDict, federation: Federation) -> None:
    """Checks that the evaluations give the validation scores by which a run may end.

    Raises:
      ValueError: they do not give them.
    """
    stop, chosen = config.stop, config.eval
    field = "patience" if stop.patience else "target"
    if not stop[field]:
        return
    remedy = ""
    if "val" not in federation.data.evals:
        remedy = _remedy_without_val(config, federation)
    elif chosen.splits and "val" not in chosen.splits:
        remedy = f"set --config.eval.splits={','.join([*chosen.splits, 'val'])}"
    elif chosen.points and stop.point not in chosen.points:
        remedy = f"set --config.eval.points={','.join([*chosen.points, stop.point])}"
    if remedy:
        raise ValueError(
            f"stop.{field}={stop[field]:g} needs scores of the validation split at "
            f"{stop.point}; {remedy}"
        )


def is_on_host(
    config: ConfigDict, algorithm: Algorithm, experiment: Any, exchange: Exchange
) -> bool:
    """Whether the device has only the examples of the clients of a round.

    Args:
      experiment: a `build.Experiment`.
      exchange: `Algorithm.first_exchange`.

    Raises:
      ValueError: `data.storage` says so, and the configuration needs all on the device.
    """
    why_not = _why_not_on_host(config, algorithm, experiment)
    if config.data.storage == "host" and why_not:
        raise ValueError(
            f"data.storage='host' sends the clients of a round to the device, and {why_not}; "
            f"set --config.data.storage=device"
        )
    if config.data.storage != "auto" or why_not:
        return config.data.storage == "host"
    data = experiment.federation.data
    needed = bytes_of(data) + len(data.train.count) * bytes_of(exchange.memories)
    there = device_memory()
    if needed <= there / 2:
        return False
    warnings.warn(
        f"data.storage=auto: the examples and what clients keep need {size_text(needed)}, the "
        f"device has {size_text(there)}, so they stay on the host; set "
        f"--config.data.storage=device to have them on the device",
        stacklevel=2,
    )
    return True


def _why_not_on_host(config, algorithm, experiment):
    """Why all clients must be on the device; empty if they need not be."""
    method = f"algorithm.name={config.algorithm.name!r}"
    reasons = {
        f"{method} needs all clients in every round": algorithm.needs.everyone,
        f"{method} draws them by the state of its server": algorithm.server.sample,
        "there are several architectures": len(experiment.groups) > 1,
        "new clients join": any(values_of(config)[0][field] for field in CHOSEN_BY),
        "a trace follows the clock": algorithm.clocked and algorithm.up is not None,
        f"attack.name={config.attack.name!r} changes examples": experiment.poison(
            experiment.hparams
        ).data,
        "there are several processes": jax.process_count() > 1,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def check_together(unseen: tuple[str, ...]) -> None:
    """Checks that all architectures of clients that play together have been trained.

    Args:
      unseen: those that only new clients have.

    Raises:
      ValueError: there are such.
    """
    if unseen:
        raise ValueError(
            f"new_clients.join={TOGETHER!r} needs architectures that training clients have, "
            f"and {', '.join(unseen)} has none; set --config.new_clients.join={ALONE}"
        )


def check_new_clients(config: ConfigDict, algorithm: Algorithm) -> None:
    """Checks that new clients can join as they shall, with a learning rate above 0.

    The schedule of the clients' rate may have ended at 0, and the method have none for them.

    Raises:
      ValueError: the server cannot play on with them, or the rate is 0.
    """
    new, with_rate = config.new_clients, _methods_with("new_client_optimizer")
    if new.get("join") == TOGETHER:
        with_rate = ()
        if not algorithm.server.plays_on:
            name = config.defence.name
            of_defence = f" with defence.name={name!r}" if name else ""
            raise ValueError(
                f"new_clients.join={TOGETHER!r} does not fit "
                f"algorithm.name={config.algorithm.name!r}{of_defence}, whose server cannot "
                f"play on with new clients; set --config.new_clients.join={ALONE}"
            )
    if not new.get("rounds") or config.algorithm.name in with_rate:
        return
    if "client_schedule" not in config:
        return
    if scheduled_rate("client", 1.0, config.rounds, values_of(config)[0]) == 0:
        raise ValueError(
            f"client_schedule={config.client_schedule!r} has the learning rate 0 after "
            f"rounds={config.rounds}, when new clients join, so they would not train; set "
            f"--config.client_schedule=constant or --config.hparams.client_final above 0"
        )


def check_poisson(config: ConfigDict, trained: tuple[str, ...]) -> None:
    """Checks that a federation can have Poisson cohorts.

    Args:
      trained: the names of the architectures of clients that train.

    Raises:
      ValueError: it cannot; one line.
    """
    remedy = "set --config.cohort=fixed"
    if len(trained) > 1:
        raise ValueError(
            f"cohort={config.cohort} draws clients of one architecture, and there are "
            f"{len(trained)}; {remedy}"
        )
    if config.new_clients.get("join") == TOGETHER:
        raise ValueError(
            f"cohort={config.cohort} does not fit new_clients.join={TOGETHER}, whose cohorts "
            f"have a fixed share of all clients; {remedy}"
        )


def check_release(config: ConfigDict, algorithm: Algorithm) -> None:
    """Checks that nothing else reads updates that the server makes private.

    Raises:
      ValueError: a defence does; one line.
    """
    if algorithm.release is not None and config.defence.name:
        raise ValueError(
            f"defence.name={config.defence.name!r} makes the updates of clients depend on each "
            f"other, so that privacy.name={config.privacy.name} bounds nothing; leave one of "
            f"them out"
        )


def check_attendance(config: ConfigDict, algorithm: Algorithm) -> None:
    """Checks that rounds of which some clients are absent fit a method and its defence.

    Raises:
      ValueError: the method needs all clients, or draws them itself, or a defence compares
        clients, or settings of the clock do not fit; one line.
    """
    _check_clock(config, algorithm)
    remedies = {
        f"availability.name={config.availability.name}": "leave availability.name empty",
        f"cohort={config.cohort}": "set --config.cohort=fixed",
        f"clock.name={config.clock.name}": "set --config.clock.name=devices",
        f"clock.wait_for={config.clock.get('wait_for')}": "set --config.clock.wait_for=0",
    }
    absent = (
        config.availability.name,
        config.cohort != "fixed",
        config.clock.name == "deadline",
        config.clock.get("wait_for", 0),
    )
    if not any(absent):
        return
    why, remedy = next(
        pair for pair, is_so in zip(remedies.items(), absent, strict=True) if is_so
    )
    method = f"algorithm.name={config.algorithm.name!r}"
    if algorithm.needs.everyone:
        raise ValueError(
            f"{method} needs all clients, and with {why} some are absent; {remedy}"
        )
    draws = algorithm.server.sample is not None
    if draws and (config.cohort != "fixed" or algorithm.up or algorithm.server.seconds):
        raise ValueError(f"{method} draws its cohorts itself, and not as {why}; {remedy}")
    if config.defence.name:
        raise ValueError(
            f"defence.name={config.defence.name!r} compares the updates of a cohort, of which "
            f"some are absent with {why}; {remedy}"
        )


def _check_clock(config, algorithm):
    """Checks the settings of the clock, and those of a method that plans by it."""
    clock = config.clock
    if clock.get("wait_for", 0) > config.cohort_size:
        raise ValueError(
            f"clock.wait_for={clock.wait_for} is more than cohort_size={config.cohort_size}; "
            f"set --config.clock.wait_for={config.cohort_size} or less"
        )
    if algorithm.server.seconds is not None and config.get("local_epochs"):
        raise ValueError(
            f"algorithm.name={config.algorithm.name!r} plans the time of local_steps, and "
            f"local_epochs={config.local_epochs} takes others; set --config.local_epochs=0"
        )
    if algorithm.server.seconds is not None and config.stragglers.name:
        raise ValueError(
            f"algorithm.name={config.algorithm.name!r} plans how long clients take, and "
            f"stragglers.name={config.stragglers.name} changes it; leave stragglers.name empty"
        )


def check_schedules(config: ConfigDict) -> None:
    """Checks that no schedule ends at a learning rate of 0 before the last round.

    Raises:
      ValueError: one does.
    """
    values, last = values_of(config)[0], config.rounds - 1
    for side in ("client", "server"):
        schedule = config.get(f"{side}_schedule")
        if schedule is None or scheduled_rate(side, 1.0, last, values) > 0:
            continue
        remedy = f"--config.{side}_schedule=constant"
        if schedule == "cosine":
            remedy = (
                f"--config.hparams.{side}_horizon={config.rounds} or --config.hparams."
                f"{side}_final above 0"
            )
        raise ValueError(
            f"{side}_schedule={schedule!r} has the learning rate 0 before the last of "
            f"rounds={config.rounds}, so nothing would be trained; set {remedy}"
        )


def warn_of_idle_parts(config: ConfigDict, exchange: Exchange) -> None:
    """Warns of values with which a part of a configuration never does anything.

    Args:
      exchange: from `core.Algorithm.first_exchange`.
    """
    values, rounds, local_steps = values_of(config)[0], config.rounds, config.local_steps
    lines = []
    for field, nothing in FIRST_ROUNDS.items():
        count = values.get(field, 0)
        if count >= rounds:
            lines.append(
                f"{field}={count} is not less than rounds={rounds}, so {nothing}; set "
                f"--config.{field}={rounds - 1} or less, or more rounds"
            )
    for field in ("algorithm.fedrep_head_steps", "algorithm.fedah_head_steps"):
        steps = values.get(field)
        if steps in (0, local_steps) or (steps == -1 and local_steps == 1):
            lines.append(
                f"{field}={steps} of local_steps={local_steps} train no "
                f"{'body' if steps == local_steps else 'head'}; set --config.{field}=-1 and "
                f"--config.local_steps=2 or more"
            )
    steps, epochs = values.get("tuning.steps"), values.get("tuning.epochs")
    if epochs and steps != fields_of(values)["tuning.steps"].default:
        lines.append(
            f"tuning.steps={steps} is not read with tuning.epochs={epochs}; leave one out"
        )
    sent = jax.tree.leaves((exchange.messages, exchange.uploads))
    if config.algorithm.name != "local" and not any(leaf.size for leaf in sent):
        lines.append(
            f"algorithm.name={config.algorithm.name!r} shares no part of this client model, so "
            f"each client trains alone; set --config.algorithm.name=fedavg, or choose a model "
            f"with a body"
        )
    if config.algorithm.name == "fedbn" and not jax.tree.leaves(exchange.memories):
        lines.append(
            f"algorithm.name='fedbn' finds no normalisation layers in "
            f"model.name={config.model.name!r}, so it is fedavg; set "
            f"--config.algorithm.name=fedavg, or choose a model with some, such as resnet18"
        )
    for line in lines:
        warnings.warn(line, stacklevel=2)


def check_outputs(model: ClientModel, name: str, federation: Federation) -> None:
    """Checks that a client model has a federation's outputs.

    Raises:
      ValueError: it has others.
    """
    first = tree.take(federation.data.train, 0).rows(np.arange(1))
    if model.architecture is not None:  # its last node is the head
        outputs = (layer_of(model.architecture.nodes[-1].type).outputs,)
    else:
        key = jax.eval_shape(jax.random.key, 0)
        result = jax.eval_shape(lambda key: model.apply(model.init(key), first.x), key)
        outputs = result.shape[1:]
    if outputs != (federation.outputs,):
        raise ValueError(
            f"model.name={name!r} maps an example of shape {first.x.shape[1:]} to outputs of "
            f"shape {outputs}, and {federation.name} needs ({federation.outputs},); make the "
            f"model with these outputs"
        )


def check_symbols(model: ClientModel, name: str, federation: Federation) -> None:
    """Checks that the training inputs are symbols, if a client model reads symbols.

    Raises:
      ValueError: an input is none of the model's symbols.
    """
    low, high = input_range(federation) if model.symbols else (0.0, 0.0)
    if low < 0 or high > max(model.symbols - 1, 0):
        raise ValueError(
            f"model.name={name!r} reads the symbols 0 to {model.symbols - 1}, as many as there "
            f"are outputs, and inputs of {federation.name} go from {low:g} to {high:g}; set "
            f"--config.model.name=mlp"
        )


def _has_head(model):
    """Whether a model has parameters in its head."""
    shapes = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0))
    return bool(jax.tree.leaves(shapes["head"]))
