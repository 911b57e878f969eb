"""The forms of the files that a run leaves: which values they have, by their names.

A form is a type; a list with the form of all items; a dictionary with the forms of names, of
which those with a question mark may be missing, and of all other names under ``str``; a tuple
of forms, of which one fits; or a function that says whether a value fits, and whose name says
what is expected. Numbers are finite, and ``float`` includes whole numbers. Names that a form
does not have are not read.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import TASKS

DEPTH = 50  # of values inside each other


def load_json(text: str | bytes) -> Any:
    """A value of JSON, without numbers that are not finite.

    Raises:
      ValueError: the text is no such JSON, or it is deeper than `DEPTH`.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [[value]]
    for _ in range(DEPTH):
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")
    return value


def read_json(file: Path, form: Any) -> Any:
    """The value of JSON in a file.

    Raises:
      ValueError: the file has no JSON, or a value without this form.
      OSError: the file cannot be read.
    """
    value = load_json(file.read_bytes())
    if why := misfit(value, form):
        raise ValueError(why)
    return value


def _refuse(constant):
    raise ValueError(f"{constant} is no number of JSON")


def misfit(value: Any, form: Any, name: str = "it") -> str:
    """What in a value does not have a form; empty if all of it has."""
    if isinstance(form, tuple):
        faults = [misfit(value, other, name) for other in form]
        return "" if "" in faults else faults[-1]
    if form is None or isinstance(form, type) or callable(form):
        return "" if _fits(value, form) else f"{name} is {_short(value)}"
    if not isinstance(value, type(form)):
        return f"{name} is {_short(value)}"
    if isinstance(form, list):
        faults = (misfit(item, form[0], f"{name}[{i}]") for i, item in enumerate(value))
    else:
        faults = _misfits(value, form, "" if name == "it" else f"{name}.")
    return next(filter(None, faults), "")


def _misfits(value, form, prefix):
    names = [key for key in form if key is not str]
    for key in names:
        known = key.removesuffix("?")
        if known in value:
            yield misfit(value[known], form[key], prefix + known)
        elif known == key:
            yield f"it has no {prefix}{key}"
    for key in value.keys() - {name.removesuffix("?") for name in names}:
        if str in form:
            yield misfit(value[key], form[str], prefix + key)


def _fits(value, form):
    if form is None:
        return value is None
    if form is float:
        # A whole number of JSON can be too large for a float.
        return _fits(value, int) or (isinstance(value, float) and math.isfinite(value))
    if form is int:
        return type(value) is int and abs(value) < 2**63
    return isinstance(value, form) if isinstance(form, type) else form(value)


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def count(value: Any) -> bool:
    """Whether a value is a whole number from 0 on, which an array can have as its size."""
    return type(value) is int and 0 <= value < 2**31


def size(value: Any) -> bool:
    """Whether a value is the size of an array that is not empty."""
    return count(value) and value > 0


def array(value: Any) -> bool:
    """Whether a value is the shape and the type of numbers of clients and their examples."""
    match value:
        case [[_, _, *_] as shape, str(dtype)] if all(map(size, shape)):
            return dtype in np.sctypeDict and np.dtype(dtype).kind in "biuf"
    return False


def numbers(value: Any) -> bool:
    """Whether a value is an array of numbers, as lists."""
    try:
        values = np.asarray(value if isinstance(value, list) else None)
    except ValueError:  # rows of several lengths
        return False
    return values.dtype.kind in "if" and bool(np.isfinite(values).all())


def divisors(value: Any) -> bool:
    """Whether a value is an array of numbers but 0, as lists."""
    return numbers(value) and bool(np.all(value))


def yes(value: Any) -> bool:
    """Whether a value is true."""
    return value is True


def relation(value: Any) -> bool:
    """Whether a value has the numbers of a sender and of a receiver, and a weight."""
    match value:
        case [sender, receiver, weight]:
            return count(sender) and count(receiver) and _fits(weight, float)
    return False


def task(value: Any) -> bool:
    """Whether a value is the name of a task."""
    return isinstance(value, str) and value in TASKS


def leaf(value: Any) -> bool:
    """Whether a value is the name, the shape and the type of an array in a checkpoint."""
    match value:
        case [str(), list(shape), str()]:
            return all(map(count, shape))
    return False


def fields(value: Any) -> bool:
    """Whether a value is the name of a run: fields of its configuration as JSON."""
    try:
        return isinstance(value, str) and isinstance(load_json(value), dict)
    except ValueError:
        return False


def at_points(form: Any) -> dict[str, Any]:
    """The form of what there is at G, L and P."""
    return dict.fromkeys(POINTS, form)


SCORE = (None, float)  # null if a number of a client's model is not finite
MEANS = at_points(SCORE)
NUMBERS, PER_CLIENT = ("mean", "std_clients", "worst_decile"), {"per_client": [SCORE]}
SUMMARY = tuple(dict.fromkeys(NUMBERS, form) | PER_CLIENT for form in (None, float))
SUMMARIES = at_points(SUMMARY)
DATA = dict.fromkeys(("name", "source", "extent", "sha256"), str)
RESULTS = {
    "scores": (None, {"final": SUMMARIES}),
    "metric": str,
    "variant": str,
    "seed": int,
    "rounds": count,
    "stopped?": (None, str),
    "diverged": bool,
    "higher_is_better": bool,
    "new_clients": (
        None,
        {
            "clients": [str],
            "curve": [{"rounds": count, **SUMMARIES}],
            "diverged_at": int,
            "architectures?": {
                str: {"clients": [str], "trained": bool, "curve": [{"rounds": count, **MEANS}]}
            },
        },
    ),
    "attack": (
        None,
        {
            "name": str,
            "ids?": [count],
            "benign?": (None, SUMMARIES),
            "benign_by_malicious_neighbours?": (
                None,
                [{"share": str, "ids": [count], "scores": MEANS}],
            ),
            "success?": (None, MEANS),
        },
    ),
    "timing": {str: float},
    "dataset": DATA,
    "rounds_trained?": (None, [count]),
    "means_by_examples?": (None, MEANS),
    "sample?": (None, {"of": count, "ids": [count], "half_width": MEANS}),
    "metrics?": (None, at_points({str: {"mean": SCORE, "clients?": count}})),
    "errors?": (None, {"units": str, **at_points({str: {str: SCORE}})}),
    "labels?": (None, at_points({str: {"auc": SCORE, "clients": count}})),
    "rejected?": (None, {"honest": SCORE, "malicious": SCORE, "per_client": [SCORE]}),
    "defence?": (None, str),
    "privacy?": (
        None,
        {
            "name": str,
            "epsilon": (None, float),
            "delta": (None, float),
            "accountant": (None, str),
            "noise_multiplier": (None, float),
            "clip": (None, float),
            "rounds?": (None, count),
            "cohort?": (None, float),
            "population?": (None, count),
        },
    ),
    "allocation?": (None, [[float]]),
    "embeddings_moved?": (None, float),
    "simulated_seconds?": (None, float),
    "architectures?": (
        None,
        {
            str: {
                "clients": [str],
                "scores": {"test": MEANS},
                "up_bytes": count,
                "down_bytes": count,
            }
        },
    ),
    "communication?": {"up_bytes": count, "down_bytes": count, "clients?": count},
    "device?": str,
    "versions?": {str: str},
    "git_commit?": (None, str),
    "identity?": {"arrays?": str},
}
IDENTITY = {
    **dict.fromkeys(("config", "data", "arrays"), str),
    **dict.fromkeys(("source", "config_file"), (None, str)),
    "callables": {str: str},
    **dict.fromkeys(("init?", "weights?", "trace?"), str),
}
LOST = {"source": None, "config_file": None, "callables": {}}  # the digests of unknown code
ACCEPTED = {f"{name}?" if name in LOST else name: form for name, form in IDENTITY.items()}
del ACCEPTED["arrays"]  # identities of older releases do not have all
RECORD = {"identity": IDENTITY, "accepted_changes": [ACCEPTED]}  # identity.json
NOTES = {  # of a run in a checkpoint
    "identity": IDENTITY,
    "where": {"device": str, "versions": dict},
    "seconds": {str: float},
}
MEAN_AT_P = {"final": {"P": {"mean": float, "loss?": SCORE}}}
_TRIAL = {
    "identity": {"data": str, "source": (None, str)},
    "accepted_changes": [IDENTITY],
    "trial": fields,
    "point": dict,
    "seed": int,
    "dataset": {"name": str, "source": str},
    "metric": str,
    "higher_is_better": bool,
    "diverged": bool,
    "validation": MEAN_AT_P | {"new_clients?": [float]},
    "scores": MEAN_AT_P,
    "metrics?": (None, {"P": {str: {"mean": SCORE}}}),
    "new_clients": (None, {"diverged_at": int}),
    "device": str,
    "versions": {str: str},
    "git_commit": (None, str),
}
# A line of the log of a sweep, of a run that diverged, whose scores are not read, or did not.
TRIAL = (_TRIAL | {"diverged": yes, "validation": object, "scores": object}, _TRIAL)
ROW = {
    "round": count,
    "train": {str: SCORE},
    "metrics?": {str: {str: {"mean": SCORE}}},
    "allocation?": list,
    "not_finite?": {str: count},
    "simulated_seconds?": float,
    str: {str: tuple(dict.fromkeys((*NUMBERS, "jain"), form) for form in (None, float))},
}
FEDERATION = {  # federation.json
    "task": task,
    "outputs": size,
    "labels": [(str, float)],
    "axes": (None, [str]),
    "clients": [
        {
            "name": str,
            "examples": {str: count},
            "labels": (None, {"train": [count]}),
            "position": (None, [float]),
            "new": bool,
            "malicious": bool,
        }
    ],
    "relations": [relation],
    "listed?": (None, {"of": size, "ids": [count], "sha256": str}),
}
ARRAYS = ({"x": array, "y": array}, {"series": array, "past": count, "future": count})
SHAPES = {"train": ARRAYS, "evals": {str: ARRAYS}, "nodes": size, "edges": count}
MOVED = (None, {"offset": numbers, "scale": divisors})
MODELS = {
    "version": str,
    "method": str,
    "round": count,
    "rounds_trained?": (None, [count]),
    "scored?": (None, [count]),
    "config": dict,
    "model": {
        "name": str,
        "inputs": [size],
        "type": str,
        "outputs": size,
        "task": task,
        "labels": [(str, float)],
        "units?": (None, str),
    },
    "dataset": {"name": str, "source": str},
    "scaling": (None, {"clients": [str], "inputs": MOVED, "targets": MOVED}),
    "clients": [str],
    "new_clients": count,
    "data": SHAPES,
    "everyone": (None, SHAPES),
    "groups": [{"name": str, "clients": [str], "points": {"G": str, "P": str}}],
}
