"""The identity of a run: SHA-256 of all that decides its results.

A folder of a run, a line of a sweep and a cached run of a table hold the identity under which
they were made, as a dictionary:

    config       the fields of the configuration, but those that are free on resume
    data         `Federation.sha256`: the examples and the relations
    arrays       the data as the run uses them: which examples train and which test, the new
                 clients, the order of the attackers
    source       the source files of this package, but those of the commands
    config_file  the configuration file that the user gave; None without one
    callables    the files of functions that the user registered or passed, by file name
    init         only with ``init_from``: the state of the server from which the run began
    weights      only with ``model.weights``: the file of pretrained weights
    trace        only with ``availability.file``: the file that says when clients are up

`source`, `config_file` and `callables` are the code. What an identity is compared for, and what
follows if it differs, is the rule of `store`.
"""

import functools
import hashlib
import inspect
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from graphfl_jax.algorithms import ALGORITHMS, Method
from graphfl_jax.configs.values import as_text
from graphfl_jax.data import DATASETS, GRAPHS
from graphfl_jax.data.federation import Federation
from graphfl_jax.data.label_skew import PARTITIONS
from graphfl_jax.data.on_demand import OnDemand
from graphfl_jax.metrics import METRICS
from graphfl_jax.models import MODELS
from graphfl_jax.models.architectures import ARCHITECTURES
from graphfl_jax.optimizers import OPTIMIZERS, SCHEDULES
from graphfl_jax.register import FILES
from graphfl_jax.wire.attacks import ATTACKS
from graphfl_jax.wire.compression import COMPRESSORS
from graphfl_jax.wire.defences import DEFENCES
from graphfl_jax.wire.privacy import PRIVACIES

# Registries of what enters a compiled program, and of data.
PROGRAMS = (
    ALGORITHMS,
    MODELS,
    ARCHITECTURES,
    OPTIMIZERS,
    SCHEDULES,
    COMPRESSORS,
    PRIVACIES,
    ATTACKS,
    DEFENCES,
    METRICS,
)
REGISTRIES = (*PROGRAMS, DATASETS, GRAPHS, PARTITIONS)
# Fields that may differ on resume: they change where and how long a run is, not its rounds.
PATHS = {"data.path", "data.root", "data.download"}
STOP = {"stop.patience", "stop.target", "stop.point"}
FREE_ON_RESUME = {"rounds", "checkpoint_every", *STOP, *PATHS}

# Fields of files that a run reads beside its data, by their names in identities
FILE_FIELDS = {"weights": "model.weights", "trace": "availability.file"}

PACKAGE = Path(__file__).resolve().parents[1]

Identity = dict[str, Any]


def _source_code() -> bytes:
    """The names and contents of the source files of this package that decide results.

    Those of the commands and of the checks start runs, and show what came of them.
    """
    sources = {path.relative_to(PACKAGE): path for path in PACKAGE.rglob("*.py")}
    return b"".join(
        str(name).encode() + sources[name].read_bytes()
        for name in sorted(sources)
        if name.parts[0] not in ("commands", "testing", "reading.py", "__main__.py")
    )


# Of the code that this process has imported. The files may be edited while it runs.
SOURCE = hashlib.sha256(_source_code()).hexdigest()


def identity_of(
    config: ConfigDict, federation: Federation, arrays: str, code: Mapping[str, Any]
) -> Identity:
    """The identity of a run.

    Args:
      federation: as `build.arrange` gives it.
      arrays: its `digest_of_arrays`.
      code: from `digests_of_code`.
    """
    identity = {
        "config": digest_of_config(config.to_dict()),
        "data": federation.sha256,
        "arrays": arrays,
        **code,
    }
    return identity | digests_of_files(config)


def digests_of_files(config: ConfigDict) -> dict[str, str]:
    """SHA-256 of each of `FILE_FIELDS` that a configuration names, by name."""
    digests = {}
    for name, field in FILE_FIELDS.items():
        section, key = field.split(".")
        if config[section].get(key):
            digests[name] = _sha256(Path(config[section][key]).read_bytes())
    return digests


def digest_of_config(values: Mapping[str, Any]) -> str:
    """SHA-256 of the fields of config.json, but those that are free on resume."""
    fields = flatten_dict(values, sep=".")
    unread = {name for name in fields if name.startswith("defaults.")}
    return _sha256(as_text(fields, without=FREE_ON_RESUME | unread).encode())


def digest_of_arrays(federation: Federation) -> str:
    """SHA-256 of all arrays of a federation, in the order in which clients have them.

    Of an `OnDemand` array, of its formula in place of its rows.
    """
    digest = hashlib.sha256()
    data = (federation.data, federation.everyone)
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if isinstance(leaf, OnDemand):
            text = f"{jax.tree_util.keystr(path)}{leaf.dtype.str}{leaf.shape}{leaf.formula}"
            digest.update(text.encode())
            continue
        leaf = np.asarray(leaf)
        leaf = np.ascontiguousarray(leaf, leaf.dtype.newbyteorder("<"))
        digest.update(f"{jax.tree_util.keystr(path)}{leaf.dtype.str}{leaf.shape}".encode())
        digest.update(leaf)
    return digest.hexdigest()


def digests_of_code(
    *config_files: str | os.PathLike | None, callables: Iterable[Callable] = ()
) -> dict[str, Any]:
    """The digests of the code of a run: `source`, `config_file` and `callables`.

    Args:
      config_files: the configuration files that the user gave; None counts as none.
      callables: functions that make the run. Those of this package are in `source`.
    """
    contents = [Path(file).read_bytes() for file in filter(None, config_files)]
    return {
        "source": SOURCE,
        "config_file": _sha256(b"".join(contents)) if contents else None,
        "callables": digests_outside([*functions_in(REGISTRIES), *callables]),
    }


def functions_in(registries: Iterable[Mapping[str, Callable | Method]]) -> list[Callable]:
    """The functions in registries."""
    parts = [part for registry in registries for part in registry.values()]
    return [part.factory if isinstance(part, Method) else part for part in parts]


def digests_outside(functions: Iterable[Callable]) -> dict[str, str]:
    """The digests of those files that define functions, or what they wrap, by file name.

    The digest of a file with a registered function is that of its registration. Files of this
    package are left out. A function without a file, as from a notebook, has under
    its own name the digest of its instructions, its defaults, and what it uses of other cells.
    """
    pairs = set()  # of a name and a digest
    for function in filter(None, map(_callee, itertools.chain(*map(_layers, functions)))):
        code = function.__code__
        file = Path(code.co_filename).resolve()
        if not file.is_file():
            pairs.add((code.co_name, _sha256(b"".join(_contents(function, set())))))
        elif not file.is_relative_to(PACKAGE):
            pairs.add((file.name, FILES.get(file) or _sha256(file.read_bytes())))
    by_name = {}
    for name, digest in sorted(pairs):
        by_name.setdefault(name, []).append(digest)
    return {
        name: digests[0] if len(digests) == 1 else _sha256("".join(digests).encode())
        for name, digests in by_name.items()
    }


def digest_of_json(value: Any) -> str:
    """SHA-256 of a value of JSON, which is the same after it has been written and read."""
    return _sha256(json.dumps(value, sort_keys=True).encode())


def _layers(function):
    """A function, and those that it wraps as a decorator or a `functools.partial`.

    Of a class, its methods.
    """
    while function is not None:
        if inspect.isclass(function):
            yield from vars(function).values()
        yield function
        inner = function.func if isinstance(function, functools.partial) else None
        function = getattr(function, "__wrapped__", inner)


def _callee(function):
    """A function, or what is called in its place; None if it is not Python."""
    candidates = (function, type(function).__call__)
    return next((called for called in candidates if getattr(called, "__code__", None)), None)


def _contents(function, seen):
    """What decides the results of a function without a file: its code, and what it refers to.

    These are the values of its closure and of its globals. Of those that are functions or
    classes without a file, it is the same in turn.

    Args:
      function: with its code.
      seen: code that is left out; what is added is put into it.
    """
    code = function.__code__
    seen.add(code)
    yield _instructions(code)
    yield _text((function.__defaults__, function.__kwdefaults__)).encode()
    used = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    used += [function.__globals__[n] for n in _names(code) if n in function.__globals__]
    for value in used:
        inner = [called for called in map(_callee, _layers(value)) if called is not None]
        for called in inner:
            if called.__code__ not in seen and not Path(called.__code__.co_filename).is_file():
                yield from _contents(called, seen)
        if isinstance(value, np.ndarray):
            yield value.tobytes()
        elif not inner:
            yield _text(value).encode()


def _is_set(cell):
    try:
        return cell.cell_contents is not cell
    except ValueError:  # of a name that has no value yet
        return False


def _names(code):
    """The names of globals and attributes that a function uses, with those inside it."""
    nested = [c for c in code.co_consts if inspect.iscode(c)]
    return sorted({*code.co_names, *itertools.chain.from_iterable(map(_names, nested))})


def _instructions(code):
    """The instructions, names and constants of a function without its file and lines."""
    nested = [c for c in code.co_consts if inspect.iscode(c)]
    constants = _text([c for c in code.co_consts if c not in nested])
    outer = repr((code.co_code, code.co_names, constants))
    return outer.encode() + b"".join(map(_instructions, nested))


def _text(value):
    """A constant or a default as text that is the same in every process."""
    kind = type(value).__qualname__
    if isinstance(value, set | frozenset):
        return f"{kind} {sorted(map(_text, value))}"
    if isinstance(value, tuple | list):
        return f"{kind} {list(map(_text, value))}"
    if isinstance(value, dict):
        return f"{kind} {list(map(_text, value.items()))}"
    if value is None or isinstance(value, int | float | complex | str | bytes):
        return repr(value)
    return getattr(value, "__qualname__", kind)  # its repr may have an address


def _sha256(data):
    return hashlib.sha256(data).hexdigest()
