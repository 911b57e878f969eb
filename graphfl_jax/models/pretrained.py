"""Reads pretrained weights: files of named tensors."""

import functools
import os
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """The tensors of a ``.safetensors`` file, or of a ``.pth`` file if PyTorch is installed.

    Raises:
      FileNotFoundError: the file does not exist.
      ValueError: the file cannot be read, or PyTorch is missing.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"model.weights={path!r} does not exist; set --config.model.weights to a file, or "
            f"leave it empty for random weights"
        )
    return _read(path, os.stat(path).st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _read(path, modified):
    """Cached, because every compilation builds the model again.

    The time of modification is part of the cache's key, so that a changed file is read again.
    """
    readers = {".safetensors": load_file, ".pth": _read_pth}
    suffix = Path(path).suffix
    if suffix not in readers:
        endings = " or ".join(readers)
        raise ValueError(
            f"model.weights={path!r} has an unknown file format; give a file that ends in "
            f"{endings}"
        )
    try:
        return readers[suffix](path)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"model.weights={path!r} needs PyTorch, which is not installed; run pip install "
            f"torch, or convert the file to .safetensors on a machine with PyTorch"
        ) from error
    # A damaged file can make the unpickler raise almost any exception.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(
            f"model.weights={path!r} is damaged or is not a {suffix} file of tensors ({why}); "
            f"download it again"
        ) from error


def _read_pth(path):
    import torch

    # With weights_only, PyTorch executes no code from the file.
    content = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.float().numpy() for name, tensor in content.items()}
