"""Files of named tensors: weights that were trained elsewhere."""

import functools
import os
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """The tensors of a ``.safetensors`` file, or of a ``.pth`` file if PyTorch is installed.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not such a file, or PyTorch is missing; one line with the remedy.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"model.weights={path!r} is no file; give the path of one, or leave it empty for "
            f"random weights"
        )
    return _read(path, os.stat(path).st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _read(path, changed):
    """Kept for whoever builds the same model again, which every compilation does."""
    readers = {".safetensors": load_file, ".pth": _read_pth}
    suffix = Path(path).suffix
    if suffix not in readers:
        raise ValueError(f"model.weights={path!r} must end in {' or '.join(readers)}")
    try:
        return readers[suffix](path)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"model.weights={path!r} is read by PyTorch; pip install torch, or convert the "
            f"file to .safetensors where it is installed"
        ) from error
    # Damaged bytes can make an unpickler raise nearly anything.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(
            f"model.weights={path!r} is not a whole {suffix} file of tensors ({why}); "
            f"download it again"
        ) from error


def _read_pth(path):
    import torch

    content = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.float().numpy() for name, tensor in content.items()}
