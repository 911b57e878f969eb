"""Files: the data folder, downloads, and safe reading of npz files."""

import codecs
import contextlib
import http.client
import os
import re
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np


class MissingFilesError(FileNotFoundError):
    """Files of a data set are not there. Its message names the setting that needs no files.

    Args:
      missing: what is missing, and where to get it.
      source: the value of `data.source` that needs no files.
    """

    def __init__(self, missing: str, source: str) -> None:
        super().__init__(f"{missing}, or set --config.data.source={source}")
        self.missing, self.source = missing, source

    def __reduce__(self):  # by default, copies are made from the message alone
        return type(self), (self.missing, self.source)


def default_root() -> Path:
    """The default data folder: ``GRAPHFL_DATA``, or a folder in the user's cache folder."""
    if root := os.environ.get("GRAPHFL_DATA"):
        return Path(root).expanduser()
    return cache_folder()


def cache_folder() -> Path:
    """The folder in the user's cache for files that this package can make again."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "graphfl_jax"


def check_path(path, source, *, reading) -> None:
    """Checks the setting `data.path` beside `data.source`. An empty path is always valid.

    Args:
      reading: the sources that read a file.

    Raises:
      ValueError: the source reads no file.
      FileNotFoundError: there is no such file.
    """
    if path and source not in reading:
        raise ValueError(
            f"data.path={str(path)!r} is not read with data.source={source!r}; leave data.path "
            f"empty, or set --config.data.source to {' or '.join(reading)}"
        )
    if path:
        check_exists(path)


def report_missing(name, missing, remedy, *, folder, required, stand_in) -> None:
    """Warns that a loader makes up data since a file is missing, or raises an error.

    Data are made up only if the user has chosen no data folder, and nothing in the default
    folder looks like the data set. Else its files have another name or place, or a part of them
    is missing. Returns None in place of the file.

    Args:
      name: the data set.
      missing: what is missing.
      remedy: where to get what is missing.
      folder: the folder of the data set in the data folder.
      required: whether the settings do not allow made-up data.
      stand_in: what the loader makes instead, such as "images are simulated".

    Raises:
      MissingFilesError: the file is required.
    """
    root, alike = folder.parent, _alike(name, folder)
    missing = f"{name}: {missing}"
    if alike:
        missing += f", but there is {alike}"
    if not root.is_dir() and root != cache_folder():
        missing += f", and no data folder {root}"
    if required or alike or root != cache_folder():
        raise MissingFilesError(f"{missing}; {remedy}", "simulated")
    # Of the caller of the loader, which calls a function that calls this one.
    warnings.warn(f"{missing}, so {stand_in}; {remedy}", stacklevel=4)


def _alike(name, folder):
    """What is in a data set's folder, or beside it under a similar name; "" for nothing."""
    if folder.is_dir():
        there = [f"{folder.name}/{path.name}" for path in folder.iterdir()]
    else:
        beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
        letters = re.compile(_letters(name) + r"(?!\d)")  # CIFAR-100 is not CIFAR-10
        # Fashion-MNIST is not MNIST.
        first = letters.match(_letters(folder.name))
        is_alike = letters.match if first else letters.search
        there = [path.name for path in beside if is_alike(_letters(path.name))]
    return ", ".join(sorted(there)[:5])


def _letters(name):
    return "".join(filter(str.isalnum, name.lower()))


def check_exists(path, *, field="data.path") -> None:
    """Raises a FileNotFoundError if the value of a field is not a file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{field}={str(path)!r} is not a file; correct the path")


def read_text(path) -> str:
    """The text of a file, without a byte order mark and without blank lines at its end.

    It is decoded as Latin-1, which takes any bytes, so the reader refuses files of other types.
    """
    return Path(path).read_bytes().removeprefix(codecs.BOM_UTF8).decode("latin1").rstrip()


def text_of(value) -> str:
    """A name as text, which a file may hold as bytes or as a number."""
    return value.decode() if isinstance(value, bytes) else str(value)


def fetch(url, destination, *, max_bytes) -> Path:
    """Downloads `url` to the file `destination`. A failure leaves no partial file.

    Args:
      url: an https address.
      destination: the file. Its folder is created.
      max_bytes: size limit of the download, which is held in memory.

    Raises:
      OSError: the network or the server fails, as urllib reports it.
      ValueError: the address is not https, or the answer is longer than `max_bytes`.
    """
    _check_https(url)
    destination = Path(destination)
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            _check_https(response.url)  # after redirections
            content = response.read(max_bytes + 1)
            announced = response.headers.get("Content-Length")
    except http.client.HTTPException as error:
        # Raised for incomplete answers and answers that are not HTTP; it is not an OSError.
        raise ConnectionError(
            f"{url}: the server's answer is invalid ({error!r}); try again later"
        ) from error
    if len(content) > max_bytes:
        raise ValueError(
            f"{url}: the file is larger than {max_bytes} bytes; download it by hand"
        )
    # A connection that closes early ends the answer without an error.
    if announced is not None and len(content) != int(announced):
        raise ConnectionError(
            f"{url}: the answer ended after {len(content)} of {announced} bytes; try again "
            "later"
        )
    destination.parent.mkdir(parents=True, exist_ok=True)
    with open_new(destination) as file:
        file.write(content)
    return destination


@contextlib.contextmanager
def open_new(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to write, which replaces `path` at the end. A failure leaves no file."""
    # In the same folder, because a rename is atomic only within one file system. The name is
    # drawn, since processes of several hosts can write the same file, with the same number.
    part = path.with_name(f"{path.name}.{os.urandom(6).hex()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# Damaged bytes can make the readers of zip files and of arrays raise almost any exception.


def open_npz(path, opened):
    """The npz file of an opened file. Raises a ValueError if it is none, or damaged."""
    try:
        if not zipfile.is_zipfile(opened):  # np.load would read it as a pickle
            raise zipfile.BadZipFile
        opened.seek(0)
        return np.load(opened, allow_pickle=False)
    except Exception as error:
        raise ValueError(
            f"{path}: the file is not a complete npz file; write it with np.savez"
        ) from error


def read_npz_array(path, file, field):
    """An array of an npz file. Raises a ValueError if it cannot be read, or is pickled."""
    try:
        return np.asarray(file[field])
    except Exception as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path}: the array {field!r} cannot be read ({why}); write it with np.savez, and "
            "names as strings and not as objects"
        ) from error


def _check_https(url):
    if not url.startswith("https://"):
        raise ValueError(f"url={url!r} is not https; use an address that starts with https://")
