"""Registers parts of the user under a name: models, methods, data sets, relations, partitions,
metrics, optimisers, compressors, privacy, attacks and defences.

    import graphfl_jax as g

    g.register.metric("within_one", within_one)

A registered part is chosen, set and checked as any other, and the help of a command with the
file that registers it lists its settings. A cell of a notebook, or a file, can run twice: a
function replaces one that was registered under the same name before, if it has the same name
itself and is defined in the same file or in the notebook. Anything else under a name that is
taken is refused, and names of the package are never replaced.
"""

import hashlib
import inspect
from collections.abc import Callable, Collection, MutableMapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from graphfl_jax.algorithms import ALGORITHMS, VARIANTS
from graphfl_jax.algorithms.method import method_of
from graphfl_jax.build import (
    OF_ALGORITHMS,
    OF_ATTACKS,
    OF_DATASETS,
    OF_MODELS,
    OF_PARTITIONS,
    OF_RELATIONS,
)
from graphfl_jax.configs.fields import BASE, fields_of
from graphfl_jax.configs.values import change
from graphfl_jax.data import DATASETS, GRAPHS
from graphfl_jax.data.label_skew import PARTITIONS
from graphfl_jax.declarations import Setting, parameters
from graphfl_jax.metrics import METRICS
from graphfl_jax.models import MODELS
from graphfl_jax.optimizers import OPTIMIZERS
from graphfl_jax.settings import Real
from graphfl_jax.wire.attacks import ATTACKS
from graphfl_jax.wire.compression import COMPRESSORS
from graphfl_jax.wire.defences import DEFENCES
from graphfl_jax.wire.privacy import PRIVACIES

REGISTRIES = {
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "dataset": DATASETS,
    "relations": GRAPHS,
    "partition": PARTITIONS,
    "metric": METRICS,
    "optimizer": OPTIMIZERS,
    "compressor": COMPRESSORS,
    "privacy": PRIVACIES,
    "attack": ATTACKS,
    "defence": DEFENCES,
}
SECTIONS = {
    "model": "model",
    "algorithm": "algorithm",
    "dataset": "data",
    "relations": "data",
    "partition": "data",
    "compressor": "compression",
    "privacy": "privacy",
    "attack": "attack",
    "defence": "defence",
}
BESIDE = {"model": "algorithm", "algorithm": "model"}  # their floats are fields of one section
# What each kind must look like, for errors.
EXPECTED = {
    "model": "(*, inputs, outputs, task, width: Annotated[int, Integer('Width.')] = 16)",
    "algorithm": "(model, train: Train, *, own_mu: Annotated[Array, Real('Weight.')] = 0.1)",
    "dataset": "(*, seed, clients: Annotated[int, Integer('Clients.')] = 10)",
    "relations": "(federation, *, reach: Annotated[int, Integer('Reach.')] = 1)",
    "partition": "(*, clients: Annotated[int, Integer('Clients.')] = 10, seed)",
    "metric": "(outputs, y, real)",
    "optimizer": "(*, lr, decay: Annotated[Array, Real('Decay.')] = 0.9)",
    "compressor": "(*, levels: Annotated[int, Integer('Levels.')] = 16)",
    "privacy": "(*, privacy_size: Annotated[Array, Real('Size.')] = 1.0)",
    "attack": "(*, attack_size: Annotated[Array, Real('Size.')] = 1.0)",
    "defence": "(*, defence_size: Annotated[Array, Real('Size.')] = 1.0)",
}
REGISTERED: dict[tuple[str, str], Callable] = {}  # by kind and name
# SHA-256 of the files of these functions when they were registered: they may be edited later.
FILES: dict[Path, str] = {}


def model(name: str, factory: Callable) -> None:
    """Registers a client model for ``model.name``.

    Args:
      name: an identifier.
      factory: returns a `core.ClientModel`, for example from `graphfl_jax.client_model`. Its
        parameters are settings, declared in its signature, and any of `OF_MODELS`.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("model", name, factory, OF_MODELS)


def algorithm(name: str, factory: Callable) -> None:
    """Registers a method for ``algorithm.name``. In names after a colon, - stands for _.

    Args:
      name: an identifier.
      factory: returns a `core.Algorithm`. Its parameters are settings and parts, declared in
        its signature, and any of `OF_ALGORITHMS`, of which it takes `model` or `models`.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("algorithm", name, factory, OF_ALGORITHMS, one_of=("model", "models"))


def dataset(name: str, factory: Callable) -> None:
    """Registers a data set for ``data.name``.

    Args:
      name: an identifier.
      factory: returns a `data.federation.Federation`, for example from
        `graphfl_jax.from_arrays`. Its parameters are settings, declared in its signature, and
        `root`, the folder of all data, and `seed`, of the random split.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("dataset", name, factory, OF_DATASETS)


def relations(name: str, factory: Callable) -> None:
    """Registers relations between clients for ``data.graph``.

    Args:
      name: an identifier.
      factory: returns its `federation` with other relations, for example from
        `data.federation.with_graph`. Its parameters are settings, declared in its signature,
        `federation`, and `seed`, of the run.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("relations", name, factory, OF_RELATIONS, one_of=("federation",))


def partition(name: str, factory: Callable) -> None:
    """Registers a way to divide labelled examples among clients, for ``data.partition``.

    Args:
      name: an identifier.
      factory: returns a function (labels [n], number of classes) -> per client the indices of
        its examples, as a list of integer arrays. Its parameters are settings, declared in its
        signature, and `seed`, of the run.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("partition", name, factory, OF_PARTITIONS)


def metric(name: str, function: Callable) -> None:
    """Registers a further metric for ``metrics``.

    Args:
      name: an identifier.
      function: (outputs [S, O], y [S, ...], real [S]) -> a scalar, or NaN if the metric is
        undefined. It gets all examples of one client; `real` says which of them count. It is
        compiled, so it uses `jax.numpy`.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("metric", name, function)


def optimizer(name: str, factory: Callable) -> None:
    """Registers an optimiser for ``client_optimizer``, and the other fields of optimisers.

    Args:
      name: an identifier.
      factory: returns an `optax.GradientTransformation`. It takes `lr`, which a schedule may
        change from round to round, and floats, declared in its signature, which are fields such
        as ``hparams.client_decay``. All may be traced.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("optimizer", name, factory, ("lr",), one_of=("lr",))


def compressor(name: str, factory: Callable) -> None:
    """Registers a way in which clients compress updates, for ``compression.name``.

    Args:
      name: an identifier.
      factory: returns a `wire.compression.Compressor`. Its parameters are settings, declared in
        its signature.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("compressor", name, factory)


def privacy(name: str, factory: Callable) -> None:
    """Registers a way to make updates private, for ``privacy.name``.

    No accountant knows its epsilon, which results do not have.

    Args:
      name: an identifier.
      factory: returns a `wire.privacy.ByClient`, or a `wire.privacy.ByServer`. Its parameters
        are settings, declared in its signature.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("privacy", name, factory)


def attack(name: str, factory: Callable) -> None:
    """Registers an attack for ``attack.name``.

    Args:
      name: an identifier.
      factory: returns a function (updates [M, d], `wire.upload_attacks.Known`) -> updates
        [M, d], of which the attackers send theirs; or a `wire.attacks.DataAttack`. Its
        parameters are settings, declared in its signature, and any of `OF_ATTACKS`.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("attack", name, factory, OF_ATTACKS)


def defence(name: str, factory: Callable) -> None:
    """Registers a defence for ``defence.name``.

    Args:
      name: an identifier.
      factory: returns a function: updates [M, d] of a cohort -> updates [M, d] from which the
        server learns. Its parameters are settings, declared in its signature.

    Raises:
      ValueError: the name or the signature does not fit; one line.
    """
    _register("defence", name, factory)


def choose_parts(config: ConfigDict, **parts: str | Callable | None) -> ConfigDict:
    """A configuration with other parts.

    Args:
      **parts: a model or an algorithm, by kind: a name; or a function, which is registered
        under its own name; or None for that of the configuration.

    Raises:
      ValueError: a name is unknown, or a function does not fit; one line.
    """
    changes = {}
    for kind, part in parts.items():
        if callable(part):
            name = getattr(part, "__name__", type(part).__name__)
            {"model": model, "algorithm": algorithm}[kind](name, part)
            part = name
        if part is not None:
            changes[f"{kind}.name"] = part
    return change(config, changes) if changes else config


def _register(kind, name, function, supplied=(), one_of=()):
    registry = _registry_for(kind, name, function)
    if kind == "metric":
        try:
            inspect.signature(function).bind(None, None, None)
        except TypeError as error:
            raise _misfit(kind, name, f"it does not take three arguments ({error})") from None
    else:
        _check_signature(kind, name, function, supplied, one_of)
    registry[name] = method_of(function) if kind == "algorithm" else function
    REGISTERED[kind, name] = function
    file = Path(function.__code__.co_filename).resolve()
    if file.is_file():
        FILES[file] = hashlib.sha256(file.read_bytes()).hexdigest()


def _registry_for(kind: str, name: Any, function: Any) -> MutableMapping[str, Any]:
    """The registry of a kind, in which a function may have a name; refuses any other."""
    what = f"register.{kind}={name}"
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(
            f"{what} is not an identifier; choose a name of letters, digits and underscores"
        )
    if not inspect.isfunction(function):
        raise ValueError(f"{what} is given a {type(function).__name__}; give it a function")
    registry = REGISTRIES[kind]
    before = REGISTERED.get((kind, name))
    names = {*registry, *(VARIANTS if kind == "algorithm" else ())}
    if before is None and name in names:
        raise ValueError(
            f"{what} is a name of graphfl_jax; choose another name, such as own_{name}"
        )
    if before is not None and _place(before) != _place(function):
        raise ValueError(
            f"{what} is already the name of {_place_text(before)}, and this is "
            f"{_place_text(function)}; choose another name"
        )
    return registry


def _place(function):
    """Where a function is defined. The file of a notebook's cell does not exist."""
    file = Path(function.__code__.co_filename).resolve()
    return function.__module__, function.__qualname__, file if file.is_file() else None


def _place_text(function):
    return f"{function.__qualname__} in {function.__code__.co_filename}"


def _check_signature(
    kind: str, name: str, factory: Callable, supplied: Collection[str], one_of: Collection[str]
) -> None:
    """Checks that all parameters of a factory are declared, supplied, or have a default."""
    for parameter in inspect.signature(factory).parameters.values():
        by_name = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if parameter.kind not in by_name:
            raise _misfit(kind, name, f"{parameter} cannot be filled by name")
    try:
        declared = parameters(factory)
    except (NameError, TypeError) as error:
        raise _misfit(kind, name, f"its annotations cannot be read ({error})") from None
    for parameter, declaration, default in declared:
        why = declaration.misfit(parameter, default, supplied)
        if isinstance(declaration, Setting) and not why:
            why = _conflict(kind, parameter, declaration)
        if why:
            raise _misfit(kind, name, why)
    if one_of and not any(parameter.name in one_of for parameter in declared):
        raise _misfit(kind, name, f"it takes none of {', '.join(one_of)}")


def _conflict(kind, parameter, declaration):
    """Why a setting cannot have its field, or an empty text.

    A float of a model must not be one of a method too, nor the other way round. Optimisers have
    only floats.
    """
    if kind == "optimizer":
        return "" if isinstance(declaration, Real) else f"the setting {parameter!r} is no float"
    field = declaration.field(SECTIONS[kind], parameter)
    if f"{SECTIONS[kind]}.{parameter}" in BASE:
        return f"{parameter!r} is a field of all configurations"
    if isinstance(declaration, Real) and kind in BESIDE:
        section = BESIDE[kind]
        for part in REGISTRIES[section]:
            reader = f"{section}.name={part}"
            other = fields_of({f"{section}.name": part}).get(field)
            if other is not None and other.reader == reader:
                return f"{parameter!r} is a float of {reader} too, and both would read it"
    return ""


def _misfit(kind, name, why):
    return ValueError(
        f"register.{kind}={name}: {why}; give it a signature such as {EXPECTED[kind]}"
    )
