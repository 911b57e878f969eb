"""Files on disk: where data lie, how they are fetched, and pickles read without risk."""

import http.client
import os
import pickle
import urllib.request
from pathlib import Path

import numpy as np

_CHUNK = 1 << 16  # bytes held in memory while a download runs


def default_root() -> Path:
    """Returns the folder of the data: ``GRAPHFL_DATA``, else one in the user's cache folder."""
    if root := os.environ.get("GRAPHFL_DATA"):
        return Path(root).expanduser()
    return cache_folder()


def cache_folder() -> Path:
    """Returns the folder in the user's cache for what this package can make again."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "graphfl_jax"


def locate(root, pattern) -> Path | None:
    """Finds the file under `root` that matches a glob pattern; of several, the last by name."""
    matches = [path for path in Path(root).glob(pattern) if path.is_file()]
    return max(matches, key=lambda path: path.name, default=None)


def fetch(url, destination, *, max_bytes, timeout=10) -> Path:
    """Downloads `url` to the file `destination`, whole or not at all.

    A failure of the network or of the server is the OSError that urllib raises; an address that
    is not https, and an answer longer than `max_bytes`, is a ValueError.
    """
    _check_https(url)
    destination = Path(destination)
    # In the same folder, since a rename is atomic only within one file system.
    part = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            _check_https(response.url)  # after redirections
            destination.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                _copy(response, file, url, max_bytes)
        part.replace(destination)
    except http.client.HTTPException as error:
        # Raised for answers that break off or are not HTTP, and no OSError like the others.
        raise ConnectionError(f"{url}: the server's answer is broken ({error!r}).") from error
    finally:
        part.unlink(missing_ok=True)
    return destination


def load_pickle(path):
    """Reads a pickle that holds NumPy arrays and builtin containers, and refuses any other.

    A pickle is a program. The names it may call are those of NumPy's own reconstruction; all
    others are refused before they are looked up.
    """
    with Path(path).open("rb") as file:
        try:
            return _ArrayUnpickler(file, encoding="latin1").load()
        # Damaged bytes can make the unpickler raise nearly anything.
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"{path} is not a whole pickle of arrays and containers ({why}); "
                "replace it by the official file."
            ) from error


def _latin1(text, encoding="latin1"):
    """Stands in for ``_codecs.encode``, by which protocol 2 writes bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is refused")
    return text.encode("latin1")


# NumPy 2 moved these functions from numpy.core to numpy._core; asking an array and a scalar how
# they are pickled finds them in either version.
_RECONSTRUCT = {
    "_reconstruct": np.empty(0).__reduce__()[0],
    "scalar": np.float64(0).__reduce__()[0],
}
_FROM_BUFFER = np.empty(0).__reduce_ex__(5)[0]  # what protocol 5 calls instead
_ADMITTED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    **{
        (f"numpy.{core}.multiarray", name): function
        for core in ("core", "_core")
        for name, function in _RECONSTRUCT.items()
    },
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name} is refused")
        return _ADMITTED[module, name]


def _check_https(url):
    if not url.startswith("https://"):
        raise ValueError(f"url={url!r} is not https; use an address that starts with https://.")


def _copy(response, file, url, max_bytes):
    received = 0
    while chunk := response.read(_CHUNK):
        received += len(chunk)
        if received > max_bytes:
            raise ValueError(
                f"{url}: the file is larger than max_bytes={max_bytes}; fetch it by hand."
            )
        file.write(chunk)
    # A connection that closes early ends the reading without an error.
    promised = response.headers.get("Content-Length")
    if promised is not None and received != int(promised):
        raise ConnectionError(f"{url}: the answer ended after {received} of {promised} bytes.")
