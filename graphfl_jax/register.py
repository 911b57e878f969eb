"""Registers models, methods, data sets and metrics of the user's own under a name.

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

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.build import OF_ALGORITHMS, OF_DATASETS, OF_MODELS
from graphfl_jax.configs.base import VARIANTS
from graphfl_jax.configs.fields import BASE, fields_of
from graphfl_jax.configs.values import changed
from graphfl_jax.data import DATASETS
from graphfl_jax.metrics import METRICS
from graphfl_jax.models import MODELS
from graphfl_jax.settings import SETTINGS, Real, parameters

EMPTY = inspect.Parameter.empty
REGISTRIES = {
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "dataset": DATASETS,
    "metric": METRICS,
}
SECTIONS = {"model": "model", "algorithm": "algorithm", "dataset": "data"}
BESIDE = {"model": "algorithm", "algorithm": "model"}  # their floats are fields of one section
# What each kind must look like, for errors.
EXPECTED = {
    "model": "(*, inputs, outputs, task, width: Annotated[int, Integer('Width.')] = 16)",
    "algorithm": "(model, train: Train, *, own_mu: Annotated[Array, Real('Weight.')] = 0.1)",
    "dataset": "(*, seed, clients: Annotated[int, Integer('Clients.')] = 10)",
    "metric": "(outputs, y, real)",
}
OWN: dict[tuple[str, str], Callable] = {}  # what was registered, by kind and name
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
    where = _checked_name("metric", name, function)
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise _misfit("metric", name, f"it does not take three arguments ({error})") from None
    _keep("metric", name, function, where)


def chosen(config: ConfigDict, **parts: str | Callable | None) -> ConfigDict:
    """A configuration with other parts.

    Args:
      config: remains as it is.
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
    return changed(config, changes) if changes else config


def _register(kind, name, factory, supplied, one_of=()):
    where = _checked_name(kind, name, factory)
    _check_signature(kind, name, factory, supplied, one_of)
    _keep(kind, name, factory, where)


def _keep(kind, name, function, registry):
    registry[name] = OWN[kind, name] = function
    file = Path(function.__code__.co_filename).resolve()
    if file.is_file():
        FILES[file] = hashlib.sha256(file.read_bytes()).hexdigest()


def _checked_name(kind: str, name: Any, function: Any) -> MutableMapping[str, Callable]:
    """The registry of a kind, in which a function may have a name.

    Raises:
      ValueError: it may not, or it is no function.
    """
    what = f"register.{kind}={name}"
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(
            f"{what} is not an identifier; choose a name of letters, digits and underscores"
        )
    if not inspect.isfunction(function):
        raise ValueError(f"{what} is given a {type(function).__name__}; give it a function")
    registry = REGISTRIES[kind]
    before, own = registry.get(name), OWN.get((kind, name))
    variant = kind == "algorithm" and name.replace("_", "-") in VARIANTS
    if before is not own or variant:
        raise ValueError(
            f"{what} is a name of graphfl_jax; choose another name, such as own_{name}"
        )
    if before is not None and _place(before) != _place(function):
        raise ValueError(
            f"{what} is already the name of {_shown(before)}, and this is {_shown(function)}; "
            f"choose another name"
        )
    return registry


def _place(function):
    """Where a function is defined. The file of a notebook's cell does not exist."""
    file = Path(function.__code__.co_filename).resolve()
    return function.__module__, function.__qualname__, file if file.is_file() else None


def _shown(function):
    return f"{function.__qualname__} in {function.__code__.co_filename}"


def _check_signature(
    kind: str, name: str, factory: Callable, supplied: Collection[str], one_of: Collection[str]
) -> None:
    """Checks that all parameters of a factory are declared, supplied, or have a default.

    Raises:
      ValueError: one is not; one line.
    """
    signature = inspect.signature(factory).parameters.values()
    for own in signature:
        if own.kind in (own.VAR_POSITIONAL, own.VAR_KEYWORD, own.POSITIONAL_ONLY):
            raise _misfit(kind, name, f"{own} cannot be filled by name")
    try:
        declared = parameters(factory)
    except (NameError, TypeError) as error:
        raise _misfit(kind, name, f"its annotations cannot be read ({error})") from None
    for own, declaration, default in declared:
        if declaration is None and own not in supplied and default is EMPTY:
            known = ", ".join(supplied)
            raise _misfit(
                kind, name, f"{own!r} is neither declared nor one of those supplied ({known})"
            )
        if isinstance(declaration, SETTINGS):
            if f"{SECTIONS[kind]}.{own}" in BASE:
                raise _misfit(kind, name, f"{own!r} is a field of all configurations")
            if default is EMPTY:
                raise _misfit(kind, name, f"the setting {own!r} has no default")
            if isinstance(declaration, Real) and kind in BESIDE:
                _check_apart(kind, name, own)
            _check_default(kind, name, own, declaration, default)
    if one_of and not any(own in one_of for own, *_ in declared):
        raise _misfit(kind, name, f"it takes none of {', '.join(one_of)}")


def _check_apart(kind, name, own):
    """Refuses a float of a model that is a float of a method too, and the other way round."""
    other = BESIDE[kind]
    for part in REGISTRIES[other]:
        field = fields_of({f"{other}.name": part}).get(f"hparams.{own}")
        if field is not None and field.reader == f"{other}.name={part}":
            why = f"{own!r} is a float of {other}.name={part} too, and both would read it"
            raise _misfit(kind, name, why)


def _check_default(kind, name, own, declaration, default):
    try:
        declaration.check(own, default)
    except ValueError:
        why = f"the default {default!r} of {own!r} does not fit its declaration"
        raise _misfit(kind, name, f"{why} ({declaration.kind}, {declaration.values})") from None


def _misfit(kind, name, why):
    return ValueError(
        f"register.{kind}={name}: {why}; give it a signature such as {EXPECTED[kind]}"
    )
