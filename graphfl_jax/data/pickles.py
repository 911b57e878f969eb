"""Pickles of NumPy arrays and builtin containers, read without executing other code.

A pickle calls functions by their names, and gives objects a state. Here, the names by which
NumPy's arrays are pickled stand for parts of this module, which only note what they are called
with. An array is made at the end, of bytes and of a plain type: numbers, booleans or text. An
array of no axes that holds an object is this object.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

PLAIN = "biufSU"  # kinds of types whose values contain no reference
ORDERS = "<>=|"  # of bytes


def load_pickle(path: str | Path) -> Any:
    """What a pickle of NumPy arrays and builtin containers holds.

    Raises:
      ValueError: the file is damaged, or it holds other objects.
      OSError: the file cannot be read.
    """
    content = Path(path).read_bytes()
    # Git on Windows ends all lines of a file without zero bytes, as of protocol 0, by CRLF.
    if b"\0" not in content and content.count(b"\n") == content.count(b"\r\n"):
        content = content.replace(b"\r\n", b"\n")
    return _read(path, "the file", lambda: content, "replace it by the official file")


def load_npz_object(path: str | Path, field: str) -> Any:
    """What an npz file holds under a name, where np.savez has pickled it since it is no array.

    Raises:
      ValueError: the file is damaged, or it holds other objects.
      OSError: the file cannot be read.
    """

    def pickled():
        with zipfile.ZipFile(path) as archive, archive.open(f"{field}.npy") as member:
            np.lib.format.read_magic(member)
            np.lib.format.read_array_header_1_0(member)
            return member.read()

    return _read(path, repr(field), pickled, "write it again, by np.savez")


def _read(path, what, pickled, remedy):
    """What is in the bytes that `pickled` reads."""
    try:
        return _with_arrays(_Unpickler(io.BytesIO(pickled()), encoding="latin1").load(), {})
    except OSError:
        raise
    # Damaged bytes can make the unpickler raise almost any exception.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{path}: {what} is not a complete pickle of arrays and containers ({why}); "
            f"{remedy}"
        ) from error


class _Type:
    """A type: ``numpy.dtype``, called with its code, and perhaps given its order of bytes."""

    __slots__ = ("code", "order")

    def __init__(self, code, align=False, copy=True):
        self.code, self.order = code, "="

    def __setstate__(self, state):
        _, self.order, part, names, fields, *_ = state
        if part is not None or names is not None or fields is not None:
            raise pickle.UnpicklingError("a type with fields is refused")

    def plain(self) -> np.dtype:
        if not isinstance(self.code, str) or self.order not in ORDERS:
            raise pickle.UnpicklingError(f"the type {self.code!r} is refused")
        made = np.dtype(self.code)
        if made.kind not in PLAIN or made.hasobject:
            raise pickle.UnpicklingError(f"the type {self.code!r} is refused")
        return made if self.order == "|" else made.newbyteorder(self.order)


class _Array:
    """An array, or with an empty shape and `scalar` a number or a text."""

    __slots__ = ("content", "fortran", "scalar", "shape", "type")

    def __init__(self, shape=(0,), type=None, content=b"", fortran=False, scalar=False):
        self.shape, self.type, self.content = shape, type, content
        self.fortran, self.scalar = fortran, scalar

    def __setstate__(self, state):
        _, self.shape, self.type, self.fortran, self.content = state

    @property
    def is_object(self):
        """Whether it stands for an object that is no array."""
        whole = isinstance(self.content, list) and len(self.content) == 1
        return self.shape == () and whole

    def made(self):
        content = self.content
        if isinstance(content, str):  # of Python 2
            content = content.encode("latin1")
        if not isinstance(content, bytes | bytearray) or not isinstance(self.type, _Type):
            raise pickle.UnpicklingError("an array without bytes or without a type is refused")
        flat = np.frombuffer(bytes(content), self.type.plain())
        array = flat.reshape(self.shape, order="F" if self.fortran else "C").copy()
        return array[()] if self.scalar else array


class _Name:
    """What a name in a pickle stands for. It cannot be given a state."""

    __slots__ = ("function",)

    def __init__(self, function):
        self.function = function

    def __call__(self, *arguments):
        return self.function(*arguments)

    def __setstate__(self, state):
        raise pickle.UnpicklingError("a function with a state is refused")


def _encode(text, encoding="latin1"):
    """``_codecs.encode``, which makes bytes in protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is refused")
    return text.encode("latin1")


def _refuse_call(*arguments):
    raise pickle.UnpicklingError("numpy.ndarray is refused as a function")


NAMES = {
    ("numpy", "ndarray"): _refuse_call,  # the first argument of _reconstruct
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}
for _core in ("numpy.core", "numpy._core"):  # before NumPy 2, and since then
    NAMES |= {
        (f"{_core}.multiarray", "_reconstruct"): lambda *arguments: _Array(),
        (f"{_core}.multiarray", "scalar"): lambda kind, content: _Array(
            (), kind, content, scalar=True
        ),
        # Of protocol 5
        (f"{_core}.numeric", "_frombuffer"): lambda content, kind, shape, order, *axes: _Array(
            shape, kind, content, fortran=order == "F"
        ),
    }


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} is refused")
        return _Name(NAMES[module, name])


def _with_arrays(value, made):
    """A value with arrays in place of `_Array`; `made` keeps what was made, by identity."""
    if id(value) not in made:
        made[id(value)] = value, _with_arrays_inside(value, made)
    return made[id(value)][1]


def _with_arrays_inside(value, made):
    if isinstance(value, _Array):
        return _with_arrays(value.content[0], made) if value.is_object else value.made()
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_with_arrays(item, made) for item in value)
    if isinstance(value, dict):
        return {_with_arrays(k, made): _with_arrays(v, made) for k, v in value.items()}
    if isinstance(value, _Name | _Type):
        raise pickle.UnpicklingError("a function or a type in place of an array is refused")
    return value
