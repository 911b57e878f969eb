"""The fields of a configuration, collected from the declarations of what it chooses.

A configuration holds only the fields that its own method, model, data set, optimisers, attack
and defence read, see `settings`. Names such as ``algorithm.name`` choose them, and choosing
another changes the fields. Floats of methods, models, optimisers, attacks and defences are in
``hparams``: they are traced, so that another value compiles nothing.

``config.defaults``, if there is one, holds settings of a configuration file that nothing reads
yet; they are the defaults of fields that appear when something else is chosen.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.tuning import PARTS, tuning_trainer
from graphfl_jax.data import DATASETS, GRAPHS
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import METRICS
from graphfl_jax.models import MODELS
from graphfl_jax.models.objectives import PRECISIONS
from graphfl_jax.optimizers import OPTIMIZERS, SCHEDULES
from graphfl_jax.robustness.attacks import ATTACKS, attackers, with_attack_order
from graphfl_jax.robustness.defences import DEFENCES
from graphfl_jax.settings import (
    Choice,
    Integer,
    Items,
    Optimizer,
    Part,
    Real,
    Text,
    Variant,
    parameters,
    perhaps,
)

# triggered: test images with a backdoor's trigger; balanced and pooled: see data.balanced_test
# and data.pooled_test
SPLITS = ("val", "test", "triggered", "balanced", "pooled")
FIRST_RATE = 0.1  # default learning rate of an optimiser
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Field(NamedTuple):
    """A field of a configuration."""

    setting: Any  # its declaration
    default: Any
    reader: str  # the choice that reads it, such as "algorithm.name=fedprox"


EVERY = "every configuration"
BASE = {
    name: Field(setting, default, EVERY)
    for name, setting, default in (
        ("seed", Integer("Seed of splits, weights and draws.", low=0, high=2**32 - 1), 0),
        ("rounds", Integer("Rounds of the run."), 800),
        (
            "init_from",
            Text(
                "Folder of a run of the same method, model and data, from whose server's state "
                "this run starts; empty: it starts anew."
            ),
            "",
        ),
        ("eval_every", Integer("Rounds between two evaluations."), 20),
        (
            "checkpoint_every",
            Integer("Rounds between two checkpoints; saved at evaluations."),
            100,
        ),
        ("cohort_size", Integer("Clients in a round."), 5),
        ("batch_size", Integer("Examples in a local step, drawn with replacement."), 64),
        ("local_steps", Integer("Gradient steps K_c of a client in a round."), 50),
        (
            "eval_batch_size",
            Integer("Examples scored at once, per client; limits memory."),
            512,
        ),
        (
            "clients_per_eval",
            Integer("Clients evaluated at once; limits memory; 0 is all.", low=0),
            0,
        ),
        (
            "client_chunk",
            Integer(
                "Clients that a device trains at once; limits memory; 0: the number that was "
                "fastest for the client model in measurements.",
                low=0,
            ),
            0,
        ),
        (
            "eval.points",
            Items("Points of the evaluations before the last round; empty is all.", POINTS),
            (),
        ),
        (
            "eval.splits",
            Items("Splits of the evaluations before the last round; empty is all.", SPLITS),
            (),
        ),
        (
            "metrics",
            Items("Further test metrics; sweeps rank by the task's own.", METRICS),
            (),
        ),
        ("data.name", Choice("Data set.", DATASETS), "tpt48"),
        (
            "data.root",
            Text("Folder of data files; empty: $GRAPHFL_DATA or the user's cache."),
            "",
        ),
        (
            "data.graph",
            Choice("Relations: the data set's own, or k nearest clients.", GRAPHS),
            "own",
        ),
        ("model.name", Choice("Client model.", MODELS), "mlp"),
        (
            "precision",
            Choice("Precision of the objective of local training.", PRECISIONS),
            "float32",
        ),
        ("algorithm.name", Choice("Method.", ALGORITHMS), "panacea"),
        ("tuning.part", Choice("Part of the predictor that is fine-tuned.", ("", *PARTS)), ""),
        (
            "new_clients.fraction",
            Real("Share of the clients that join only after training.", high=1.0),
            0.0,
        ),
        ("attack.name", Choice("Attack of malicious clients.", ("", *ATTACKS)), ""),
        ("defence.name", Choice("Defence of the server.", ("", *DEFENCES)), ""),
    )
}
OF_NEW_CLIENTS = (
    "Architectures, assigned to the new clients in turn; empty: those of model.architectures, "
    "without which this field does not exist."
)
ROUNDS = Field(
    Integer("Rounds for which new clients adapt, each with its own examples.", low=0),
    0,
    "new_clients.fraction",
)


def fields_of(
    values: Mapping[str, Any], defaults: Mapping[str, Any] = NOTHING
) -> dict[str, Field]:
    """The fields that a configuration with such values has, by dotted name.

    Args:
      values: of fields; only those that choose something are read.
      defaults: of fields, in place of the declared ones.

    Raises:
      ValueError: a choice is unknown.
    """
    return _Collector(values, defaults).collect()


class _Collector:
    """Collects the fields of a configuration."""

    def __init__(self, values, defaults):
        self.values, self.defaults = values, defaults
        self.found = {}

    def collect(self):
        for name, field in BASE.items():
            self.add(name, *field)
        self.choice("data.name", DATASETS, "data", "data")
        self.choice("data.graph", GRAPHS, "data", "data")
        self.choice("model.name", MODELS, "model")
        self.choice("algorithm.name", ALGORITHMS, "algorithm")
        if self.chosen("tuning.part"):
            self.factory(tuning_trainer, "tuning", reader="tuning.part")
        if self.chosen("new_clients.fraction"):
            self.add("new_clients.rounds", *ROUNDS)
            self.factory(hold_out, "new_clients", reader="new_clients.fraction")
            if "model.architectures" in self.found:
                setting = self.found["model.architectures"].setting
                setting = dataclasses.replace(setting, meaning=OF_NEW_CLIENTS)
                self.add("new_clients.architectures", setting, (), "new_clients.fraction")
        if self.chosen("attack.name"):
            self.factory(with_attack_order, "attack", reader="attack.name")
            self.factory(attackers, "attack", reader="attack.name")
            self.choice("attack.name", ATTACKS, "attack")
        if self.chosen("defence.name"):
            self.choice("defence.name", DEFENCES, "defence")
        return self.found

    def chosen(self, name):
        field = self.found[name]
        return field.setting.check(name, self.values.get(name, field.default))

    def add(self, name, setting, default, reader):
        if name not in self.found:
            self.found[name] = Field(setting, self.defaults.get(name, default), reader)

    def choice(self, name, factories, section, floats="hparams"):
        chosen = self.chosen(name)
        self.factory(factories[chosen], section, floats, reader=f"{name}={chosen}")

    def factory(self, factory, section, floats="hparams", *, reader, defaults=NOTHING):
        for name, declared, default in parameters(factory):
            default = defaults.get(name, default)
            if isinstance(declared, Part):
                own = declared.defaults
                self.factory(declared.factory, section, floats, reader=reader, defaults=own)
            elif isinstance(declared, Optimizer):
                self.optimizer(declared, reader)
            elif declared is not None and self.is_read(declared):
                place = floats if isinstance(declared, Real) else section
                self.add(f"{place}.{name}", declared, default, reader)
                if isinstance(declared, Variant) and self.chosen(f"{place}.{name}"):
                    self.choice(f"{place}.{name}", declared.factories, section, floats)

    def is_read(self, declared):
        return not declared.when or bool(self.chosen(declared.when))

    def optimizer(self, declared, reader):
        side, own = declared.side, dict(declared.defaults)
        kind = Choice(f"Optimiser of the {side}.", tuple(OPTIMIZERS))
        self.add(f"{side}_optimizer", kind, own.get("kind", "sgd"), reader)
        rate = Real(declared.meaning or f"Learning rate of the {side}'s optimiser.")
        self.add(rate_field(declared), rate, own.get("lr", FIRST_RATE), reader)
        chosen = {f"{side}_optimizer": OPTIMIZERS}
        if not declared.rate:
            schedule = Choice(f"Schedule of {side}_lr over rounds.", tuple(SCHEDULES))
            self.add(f"{side}_schedule", schedule, "constant", reader)
            chosen[f"{side}_schedule"] = SCHEDULES
        for field, factories in chosen.items():
            name = self.chosen(field)
            for parameter, setting, default in parameters(factories[name]):
                if setting is not None:
                    default = own.get(parameter, default)
                    self.add(f"hparams.{side}_{parameter}", setting, default, f"{field}={name}")


# The fields that decide which other fields there are, with their values.
CHOICES = {
    "data.name": DATASETS,
    "data.graph": GRAPHS,
    "model.name": MODELS,
    "algorithm.name": ALGORITHMS,
    "client_optimizer": OPTIMIZERS,
    "client_schedule": SCHEDULES,
    "server_optimizer": OPTIMIZERS,
    "server_schedule": SCHEDULES,
    "tuning.part": PARTS[:1],
    "attack.name": ATTACKS,
    "defence.name": DEFENCES,
}


def rate_field(declared: Optimizer) -> str:
    """The field of an optimiser's learning rate."""
    return f"hparams.{declared.rate or declared.side + '_lr'}"


def all_fields() -> Iterator[tuple[str, Field]]:
    """Every field of every choice, with the choice that reads it; some names occur again."""
    yield from BASE.items()
    seen = set(BASE)
    for fields in _each_choice():
        for name, field in fields.items():
            if (name, field.reader) not in seen and field.reader != EVERY:
                seen.add((name, field.reader))
                yield name, field


def field_names() -> frozenset[str]:
    """The names of the fields of all choices."""
    registries = [values for values in CHOICES.values() if isinstance(values, Mapping)]
    return _field_names(tuple(itertools.chain(*(one.values() for one in registries))))


@functools.lru_cache(maxsize=1)
def _field_names(factories):
    """Those with these factories; users can register further ones."""
    return frozenset(name for name, _ in all_fields())


def _each_choice():
    """The fields of every single choice; everything else has its default."""
    for name, values in CHOICES.items():
        for value in values:
            fields = fields_of({name: value})
            yield fields
            for variant, field in fields.items():
                for one in field.setting.choices if isinstance(field.setting, Variant) else ():
                    yield fields_of({name: value, variant: one})
    for name, values in (("algorithm.name", ALGORITHMS), ("model.name", MODELS)):
        for value in values:
            yield fields_of({name: value, "new_clients.fraction": 0.1})


def setting_of(name: str) -> Any:
    """The declaration of a field that some configuration has.

    Raises:
      ValueError: no configuration has it.
    """
    for known, field in all_fields():
        if known == name:
            return field.setting
    raise ValueError(not_read(name, "", BASE))


def not_read(name: str, value: Any, fields: Mapping[str, Field]) -> str:
    """The error for a field that is not among those that a configuration reads."""
    section = name.rpartition(".")[0]
    own = [one for one in fields if one.rpartition(".")[0] == section]
    others = sorted({field.reader for one, field in all_fields() if one == name})
    if others:
        shown = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
        why = f"is not read by this configuration; it belongs to {shown}"
    else:
        known = {one for one, _ in all_fields()} | set(fields)
        why = f"is not a field{perhaps(name, known)}"
    own = ", ".join(own or sorted({one.split(".")[0] for one in fields}))
    return f"{name}={value} {why}; the fields that are read here are {own}"
