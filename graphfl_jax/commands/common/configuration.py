"""The configuration that a command line names and changes, and files of the user.

A Python file is executed. A file of settings, in TOML or YAML, is only read: it names a
configuration in ``config``, and has values of its fields.
"""

import contextlib
import functools
import runpy
import sys
import tomllib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from graphfl_jax.configs import PRESETS
from graphfl_jax.configs.values import change, complete, parse
from graphfl_jax.settings import perhaps

flags.DEFINE_string(
    "config",
    None,
    "Name of a configuration, such as tpt48, or a file, such as mine.py or mine.toml; with "
    ":METHOD, of a method, such as tpt48:fedavg. --config.FIELD=VALUE sets a field; --help "
    "lists the fields.",
)
flags.DEFINE_string("data_root", None, "Folder of data files; overrides $GRAPHFL_DATA.")
FLAGS = flags.FLAGS
OVERRIDES: dict[str, str] = {}  # values of --config.FIELD=VALUE, by field
READERS = {".toml": tomllib.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}


def configuration(default: ConfigDict | None = None) -> ConfigDict:
    """The configuration of the file, or the default, with the fields that the flags set.

    Raises:
      ValueError: --config is missing without a default, or a field does not fit.
    """
    unset = FLAGS.config is None and default is not None
    return with_data_root(parse(default if unset else file_configuration(), OVERRIDES))


def with_data_root(config: ConfigDict) -> ConfigDict:
    """The configuration with the folder of --data_root, if it is set."""
    if FLAGS.data_root is None:
        return config
    return change(config, {"data.root": FLAGS.data_root})


def refuse_configuration(why: str) -> None:
    """Refuses --config and --config.FIELD=VALUE where nothing reads them, and says why.

    Raises:
      ValueError: one of them is set.
    """
    if FLAGS.config is not None:
        raise ValueError(f"config={FLAGS.config} is not read, since {why}; leave it out")
    refuse_overrides(dict.fromkeys(OVERRIDES, why))


def refuse_overrides(fields: Mapping[str, str]) -> None:
    """Refuses --config.FIELD=VALUE of fields that a command does not read, and says why.

    Raises:
      ValueError: one of them is set.
    """
    for field, why in fields.items():
        if field in OVERRIDES:
            raise ValueError(
                f"config.{field}={OVERRIDES[field]} is not read, since {why}; leave it out"
            )


def configuration_file() -> Path | None:
    """The configuration file of --config, if it is set to a file."""
    path = (FLAGS.config or "").partition(":")[0]
    return None if path in ("", *PRESETS) else Path(path)


def file_configuration(method: str = "") -> ConfigDict:
    """The configuration that --config names, without ``--config.FIELD=VALUE``.

    Args:
      method: replaces the method that --config names.

    Raises:
      ValueError: --config is missing, or the file or the method does not fit.
    """
    if FLAGS.config is None:
        raise ValueError(
            f"config is not set; add the name of a configuration, {', '.join(PRESETS)}, or of "
            f"a file, as in --config=mine.py"
        )
    path, _, named = FLAGS.config.partition(":")
    words = [word for word in (method or named,) if word]
    if path in PRESETS:
        return complete(PRESETS[path](*words))
    if not Path(path).is_file():
        raise ValueError(
            f"config={path} is neither a configuration nor a file"
            f"{perhaps(Path(path).stem, PRESETS)}; choose from {', '.join(PRESETS)}, or a "
            f"file, such as mine.py or mine.toml"
        )
    return configuration_in_file("config", path, *words)


def configuration_in_file(flag: str, path: str, *words: str) -> ConfigDict:
    """The configuration of a file of settings, or that get_config() of a Python file returns.

    Args:
      flag: that names the file, for error messages.
      path: of the file.
      *words: the method, instead of that of the file.

    Raises:
      ValueError: as `call_in_file`, or what it returns or the file does not fit.
    """
    if Path(path).suffix in READERS:
        return _settings_in(flag, Path(path), *words)
    config = call_in_file(flag, path, "get_config", *words)
    if not isinstance(config, ConfigDict):
        raise ValueError(
            f"{flag}={path}: get_config() returns a {type(config).__name__}; return a "
            f"ConfigDict"
        )
    return complete(config)


def _settings_in(flag, path, *words):
    """The configuration of a file of settings."""
    if not path.is_file():
        raise ValueError(f"{flag}={path} is not a file; choose a file, such as mine.toml")
    try:
        values = READERS[path.suffix](path.read_text("utf-8-sig"))
    except (ValueError, yaml.YAMLError) as error:  # also of TOML, and of text
        why = " ".join(str(error).split())
        raise ValueError(f"{flag}={path} cannot be read ({why}); correct the file") from None
    name = values.pop("config", "") if isinstance(values, dict) else ""
    preset, _, method = str(name).partition(":")
    if preset not in PRESETS:
        raise ValueError(
            f"{flag}={path} has config={name!r}{perhaps(preset, PRESETS)}; set config to one "
            f"of {', '.join(PRESETS)}, with :METHOD, such as 'tpt48:ditto'"
        )
    fields = {
        ".".join(map(str, parts)): tuple(value) if isinstance(value, list) else value
        for parts, value in flatten_dict(values).items()
    }
    return change(PRESETS[preset](*(words or filter(None, [method]))), fields)


def call_in_file(flag: str, path: str, function: str, *words: str) -> Any:
    """What a function of a user's Python file returns.

    Args:
      flag: that names the file, for error messages.
      path: of the file.
      function: its name.
      *words: its arguments, such as the method.

    Raises:
      ValueError: there is no such file or function, or the file raises. One line with the
        file, the line and the exception; an error of this package remains as it is.
    """
    contents = contents_of(flag, path)
    if not callable(contents.get(function)):
        raise ValueError(f"{flag}={path} has no {function}(); define it in the file")
    with _errors_of(flag, path):
        return contents[function](*words)


@functools.cache
def contents_of(flag: str, path: str) -> dict[str, Any]:
    """The names that a Python file defines. It is executed once, and may register own parts.

    Raises:
      ValueError: as `call_in_file`.
    """
    if not Path(path).is_file():
        raise ValueError(f"{flag}={path} is not a file; choose a Python file, such as mine.py")
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:  # last, so that the file imports its neighbours, but hides none
        sys.path.append(folder)
    with _errors_of(flag, path):
        return runpy.run_path(path)


@contextlib.contextmanager
def _errors_of(flag, path):
    """Turns what a Python file raises into an error in one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        package = Path(__file__).parents[2]
        if isinstance(error, ValueError) and Path(frames[-1].filename).is_relative_to(package):
            raise
        numbers = [frame.lineno for frame in frames if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            numbers.append(error.lineno)
        where = f"line {numbers[-1]}: " if numbers else ""
        raise ValueError(
            f"{flag}={path} cannot be loaded ({where}{type(error).__name__}: {error}); correct "
            f"the file"
        ) from error
