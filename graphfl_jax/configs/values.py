"""Configurations from values of fields, which are checked, changed, and read from text."""

import json
from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from graphfl_jax.configs.fields import field_names, fields_of, not_read
from graphfl_jax.declarations import NOTHING, Setting

FLOATS = "hparams."  # fields whose values are traced


def values_of(config: ConfigDict) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a configuration, and its settings that nothing reads yet.

    Raises:
      ValueError: it is no configuration.
    """
    if not isinstance(config, ConfigDict):
        raise ValueError(
            f"config={str(config)[:40]!r} is no configuration; give a result of get_config, "
            "such as graphfl_jax.configs.tpt48.get_config('fedavg')"
        )
    values = config.to_dict()
    defaults = values.pop("defaults", {})
    return flatten_dict(values, sep="."), flatten_dict(defaults, sep=".")


def configuration(
    values: Mapping[str, Any], defaults: Mapping[str, Any] = NOTHING
) -> ConfigDict:
    """A locked configuration with all fields that are read.

    Args:
      values: values by dotted name of a field; all other fields have their defaults.
      defaults: values that replace declared defaults; some may be of fields that are not read.

    Raises:
      ValueError: a field is not read, a default is of no field, or a value is outside its
        range; one line with field, value and remedy.
    """
    fields = fields_of(values, defaults)
    for name, value in values.items():
        if name not in fields:
            raise ValueError(not_read(name, value, fields))
    read = {
        name: field.setting.check(name, values.get(name, field.default))
        for name, field in fields.items()
    }
    for name, value in defaults.items():
        if name not in fields and name not in field_names():
            raise ValueError(not_read(name, value, fields))
        if name not in fields:
            read[f"defaults.{name}"] = value
    nested = unflatten_dict(dict(sorted(read.items())), sep=".")
    return ConfigDict({"hparams": {}} | nested).lock()


def complete(config: ConfigDict) -> ConfigDict:
    """The configuration with all its fields checked; missing fields get their defaults.

    Raises:
      ValueError: as `configuration`.
    """
    return configuration(*values_of(config))


def change(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """A configuration with other values; fields that are no longer read are dropped.

    Args:
      changes: values by dotted name. If they make another choice, such as another
        ``algorithm.name``, fields with the default of the old choice get that of the new one.

    Raises:
      ValueError: as `configuration`.
    """
    values, defaults = values_of(config)
    before = fields_of(values, defaults)
    kept = {
        name: value
        for name, value in values.items()
        if name not in before or before[name].default != value
    }
    after = fields_of(kept | changes, defaults)
    still_read = {name: value for name, value in kept.items() if name in after}
    return configuration(still_read | changes, defaults)


def parse(config: ConfigDict, texts: Mapping[str, str]) -> ConfigDict:
    """A configuration with other values, given as text by dotted name, as on a command line.

    Raises:
      ValueError: as `configuration`, or a text is not of its field's type.
    """
    config, unread = adjust(config, texts)
    for name, text in unread.items():
        raise ValueError(not_read(name, text, fields_of(*values_of(config))))
    return config


def adjust(
    config: ConfigDict, texts: Mapping[str, str], changes: Mapping[str, Any] = NOTHING
) -> tuple[ConfigDict, dict[str, Any]]:
    """A configuration with other values, and those values that nothing in it reads.

    Values that choose something are applied first, so that fields appear before they are set.

    Args:
      texts: values as text by dotted name.
      changes: values by dotted name; they replace texts of the same name.

    Raises:
      ValueError: a value is outside its range, or a text is not of its field's type.
    """
    pending = {**texts, **changes}
    while pending:
        fields = fields_of(*values_of(config))
        ready = {
            name: value if name in changes else parse_value(name, value, fields[name].setting)
            for name, value in pending.items()
            if name in fields
        }
        if not ready:
            break
        config = change(config, ready)
        pending = {name: value for name, value in pending.items() if name not in ready}
    return config, pending


def parse_value(name: str, text: str, setting: Setting) -> Any:
    """The value of a field from text.

    Raises:
      ValueError: the text is not of the field's type.
    """
    try:
        return setting.parse(text)
    except (KeyError, ValueError):
        raise ValueError(
            f"{name}={text} is not of type {setting.kind}; its values are {setting.values}"
        ) from None


def current_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration that was written earlier, perhaps by an older version.

    Fields that nothing reads are dropped, and fields that did not exist yet have their
    defaults.
    """
    fields = fields_of({name: value for name, value in values.items() if value is not None})
    read = {name: values.get(name, field.default) for name, field in fields.items()}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in read.items()
    }


def as_text(values: Mapping[str, Any], *, without: set[str]) -> str:
    """The values of a configuration as JSON, without some fields."""
    return json.dumps({name: values[name] for name in sorted(values.keys() - without)})


def structure(config: ConfigDict, *, without: set[str]) -> str:
    """The fields that shape a program, as text: of traced floats the names, not the values."""
    values, _ = values_of(config)
    floats = {name for name in values if name.startswith(FLOATS)}
    return as_text(values, without=without | floats) + json.dumps(sorted(floats - without))
