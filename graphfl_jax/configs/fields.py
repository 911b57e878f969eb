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
import math
from collections.abc import Iterator, Mapping
from typing import Any

from graphfl_jax.algorithms import ALGORITHMS, Method
from graphfl_jax.algorithms.tuning import PARTS, tuning_trainer
from graphfl_jax.algorithms.veto import veto
from graphfl_jax.data import DATASETS, GRAPHS
from graphfl_jax.data.label_skew import PARTITIONS
from graphfl_jax.data.new_clients import ALONE, CHOSEN_BY, CLIENTS, FRACTION, JOIN, hold_out
from graphfl_jax.declarations import NOTHING, Field, Form, Place, Setting
from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import METRICS
from graphfl_jax.models import MODELS
from graphfl_jax.models.objectives import PRECISIONS
from graphfl_jax.optimizers import OPTIMIZERS
from graphfl_jax.settings import Choice, Integer, Items, Real, Switch, Text, perhaps
from graphfl_jax.wire.accounting import ACCOUNTED, accounting
from graphfl_jax.wire.attacks import ATTACKS, attackers, with_attack_order
from graphfl_jax.wire.availability import AVAILABILITIES, STRAGGLERS
from graphfl_jax.wire.clock import CLOCKS
from graphfl_jax.wire.compression import COMPRESSORS, feedback_of
from graphfl_jax.wire.defences import DEFENCES
from graphfl_jax.wire.privacy import PRIVACIES

# triggered: test images with a backdoor's trigger; balanced and pooled: see data.balanced_test
# and data.pooled_test
SPLITS = ("val", "test", "triggered", "balanced", "pooled")
EVERY = "every configuration"
STORAGES = ("auto", "device", "host")
POISSON = "poisson"
_BASE = {
    "seed": (Integer("Seed of splits, weights and draws.", low=0, high=2**32 - 1), 0),
    "rounds": (Integer("Rounds of the run."), 800),
    "init_from": (
        Text(
            "Folder of a run of the same client model, from whose server's state this run "
            "starts; empty: it starts anew."
        ),
        "",
    ),
    "eval_every": (Integer("Rounds between two evaluations."), 20),
    "checkpoint_every": (Integer("Rounds between two checkpoints; saved at evaluations."), 100),
    "cohort": (
        Choice(
            "How the clients of a round are drawn: fixed, cohort_size of them; or poisson, "
            "each with the same probability, cohort_size in the mean.",
            ("fixed", POISSON),
        ),
        "fixed",
    ),
    "cohort_size": (Integer("Clients in a round; with the default, all of fewer clients."), 5),
    "batch_size": (
        Integer("Examples in a local step; drawn with replacement, or in epochs without."),
        64,
    ),
    "local_steps": (Integer("Gradient steps K_c of a client in a round."), 50),
    "eval_batch_size": (Integer("Examples scored at once, per client; limits memory."), 512),
    "clients_per_eval": (
        Integer("Clients evaluated at once; limits memory; 0 is all.", low=0),
        0,
    ),
    "client_chunk": (
        Integer(
            "Clients that a device trains at once; limits memory; 0: the number that was "
            "fastest for the client model in measurements.",
            low=0,
        ),
        0,
    ),
    "eval.clients": (
        Integer("Clients that evaluations score, drawn once; with the default, all of fewer."),
        10_000,
    ),
    "eval.points": (
        Items("Points of the evaluations before the last round; empty is all.", POINTS),
        (),
    ),
    "eval.splits": (
        Items("Splits of the evaluations before the last round; empty is all.", SPLITS),
        (),
    ),
    "stop.patience": (
        Integer(
            "Rounds without a better validation score after which a run ends; 0: it plays all.",
            low=0,
        ),
        0,
    ),
    "stop.target": (
        Real("Validation score that ends a run; 0: none.", low=-math.inf),
        0.0,
    ),
    "stop.point": (Choice("Point whose validation score decides.", POINTS), "P"),
    "metrics": (Items("Further test metrics; sweeps rank by the task's own.", METRICS), ()),
    "data.name": (Choice("Data set.", DATASETS), "tpt48"),
    "data.root": (Text("Folder of data files; empty: $GRAPHFL_DATA or the user's cache."), ""),
    "data.graph": (
        Choice(
            "Relations: the data set's own; k nearest clients; those that the server learns; "
            "or, to compare with, random ones or none.",
            GRAPHS,
        ),
        "own",
    ),
    "data.storage": (
        Choice(
            "Where the examples of clients are, and what they keep between rounds: all on the "
            "device; or on the host, from which each round's clients are sent. auto: on the "
            "device, unless they take more than half of its memory.",
            STORAGES,
        ),
        "auto",
    ),
    "model.name": (Choice("Client model.", MODELS), "mlp"),
    "precision": (
        Choice(
            "Precision of products and convolutions. tensorfloat32: on a GPU, all of them have "
            "10 bits of the mantissa. bfloat16: the objective of local training is in "
            "bfloat16.",
            PRECISIONS,
        ),
        "float32",
    ),
    "algorithm.name": (Choice("Method.", ALGORITHMS), "panacea"),
    "tuning.part": (Choice("Part of the predictor that is fine-tuned.", ("", *PARTS)), ""),
    "new_clients.fraction": (FRACTION, 0.0),
    "new_clients.clients": (CLIENTS, ()),
    "availability.name": (
        Choice("Which clients of a round do not answer.", AVAILABILITIES, or_none=True),
        "",
    ),
    "stragglers.name": (
        Choice("Which clients take fewer local steps.", STRAGGLERS, or_none=True),
        "",
    ),
    "clock.name": (
        Choice("Devices whose simulated time a run measures.", CLOCKS, or_none=True),
        "",
    ),
    "compression.name": (
        Choice("How clients compress what they send.", COMPRESSORS, or_none=True),
        "",
    ),
    "privacy.name": (
        Choice(
            "Differential privacy of clients: by the server, or by each client itself.",
            PRIVACIES,
            or_none=True,
        ),
        "",
    ),
    "attack.name": (Choice("Attack of malicious clients.", ATTACKS, or_none=True), ""),
    "defence.name": (Choice("Defence of the server.", DEFENCES, or_none=True), ""),
    "defence.veto": (
        Switch("Whether clients compare what they receive with a model of their own."),
        False,
    ),
}
BASE = {name: Field(setting, default, EVERY) for name, (setting, default) in _BASE.items()}
# The registries with fields to which users can add, but for the methods
PARTS_OF_USERS = (
    DATASETS,
    GRAPHS,
    PARTITIONS,
    MODELS,
    OPTIMIZERS,
    COMPRESSORS,
    PRIVACIES,
    ATTACKS,
    DEFENCES,
)
OF_NEW_CLIENTS = (
    "Architectures, assigned to the new clients in turn; empty: those of model.architectures, "
    "without which this field does not exist."
)
ROUNDS = Integer("Rounds for which new clients adapt, each with its own examples.", low=0)


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
    return _form(values, defaults).fields


def _form(values, defaults=NOTHING):
    """The filled form of a configuration."""
    form = Form(values, defaults)
    for name, field in BASE.items():
        form.add(name, *field)

    def walk_chosen(name, factories, section):
        chosen = form.choose(name)
        factory = factories[chosen]
        if isinstance(factory, Method):
            factory = factory.factory
        form.walk(factory, Place(section, f"{name}={chosen}"))

    walk_chosen("data.name", DATASETS, "data")
    walk_chosen("data.graph", GRAPHS, "data")
    walk_chosen("model.name", MODELS, "model")
    walk_chosen("algorithm.name", ALGORITHMS, "algorithm")
    if form.choose("tuning.part"):
        form.walk(tuning_trainer, Place("tuning", "tuning.part"))
    chosen = [form.choose(field) for field in CHOSEN_BY]  # all: each decides
    reader, joins = CHOSEN_BY[0], any(chosen)
    if joins:
        form.add("new_clients.rounds", ROUNDS, 0, reader)
        form.add("new_clients.join", JOIN, ALONE, reader)
        form.walk(hold_out, Place("new_clients", reader))
    architectures = form.fields.get("model.architectures")
    if architectures and joins:
        setting = dataclasses.replace(architectures.setting, meaning=OF_NEW_CLIENTS)
        form.add("new_clients.architectures", setting, (), reader)
    if form.choose("availability.name"):
        walk_chosen("availability.name", AVAILABILITIES, "availability")
    for section, factories in (("stragglers", STRAGGLERS), ("clock", CLOCKS)):
        if form.choose(f"{section}.name"):
            walk_chosen(f"{section}.name", factories, section)
    if form.choose("compression.name"):
        walk_chosen("compression.name", COMPRESSORS, "compression")
        form.walk(feedback_of, Place("compression", "compression.name"))
    if form.choose("privacy.name"):
        walk_chosen("privacy.name", PRIVACIES, "privacy")
    if form.choose("privacy.name") in ACCOUNTED:
        form.walk(accounting, Place("privacy", "privacy.name"))
    if form.choose("attack.name"):
        form.walk(with_attack_order, Place("attack", "attack.name"))
        form.walk(attackers, Place("attack", "attack.name"))
        walk_chosen("attack.name", ATTACKS, "attack")
    if form.choose("defence.veto"):
        form.walk(veto, Place("defence", "defence.veto"))
    if form.choose("defence.name"):
        walk_chosen("defence.name", DEFENCES, "defence")
    return form


def all_fields() -> Iterator[tuple[str, Field]]:
    """Every field of every choice, with the choice that reads it; some names occur again."""
    yield from BASE.items()
    seen = set(BASE)
    for form in _forms():
        for name, field in form.fields.items():
            if (name, field.reader) not in seen and field.reader != EVERY:
                seen.add((name, field.reader))
                yield name, field


def _forms():
    """The forms of every single choice, and with it of those within its factory.

    Everything else has its default.
    """
    for name, alternatives in _form(NOTHING).choices.items():
        for value in alternatives:
            form = _form({name: value})
            yield form
            for inner in form.nested:
                for choice in form.choices[inner]:
                    yield _form({name: value, inner: choice})


def choices() -> frozenset[str]:
    """The fields that decide which other fields there are."""
    return frozenset().union(*(form.choices for form in _forms()))


def field_names() -> frozenset[str]:
    """The names of the fields of all choices."""
    methods = [method.factory for method in ALGORITHMS.values()]
    parts = (part for registry in PARTS_OF_USERS for part in registry.values())
    return _field_names(*methods, *parts)


@functools.lru_cache(maxsize=1)
def _field_names(*factories):
    """Those with these factories in the registries to which users can add."""
    return frozenset(name for name, _ in all_fields())


def setting_of(name: str) -> Setting:
    """The declaration of a field that some configuration has.

    Raises:
      ValueError: no configuration has it.
    """
    for field_name, field in all_fields():
        if field_name == name:
            return field.setting
    raise ValueError(not_read(name, "", fields_of({})))


def not_read(name: str, value: Any, fields: Mapping[str, Field]) -> str:
    """The error for a field that is not among those that a configuration reads."""
    every = list(all_fields())
    readers = sorted(
        {
            reader
            for field_name, field in every
            if field_name == name
            for reader in field.setting.when or (field.reader,)
        }
    )
    if readers:
        shown = ", ".join(readers[:3] + ["..."] if len(readers) > 3 else readers)
        why = f"is not read by this configuration; it belongs to {shown}"
    else:
        near = perhaps(name, fields) or perhaps(name, {field for field, _ in every})
        why = f"is not a field{near}"
    section = name.rpartition(".")[0]
    near = [field for field in fields if field.rpartition(".")[0] == section]
    near = near or sorted({field.split(".")[0] for field in fields})
    stated = f"{name}={value}" if value != "" else name
    return f"{stated} {why}; the fields that are read here are {', '.join(near)}"
