"""Predicts with the model of one client of a run.

    graphfl predict runs/mine --client=Oslo --data=new.npz --to=predicted.npz

The file of --data is written by ``np.savez`` and has an array ``x`` with one row per example,
in the numbers of the data before they were scaled. The arrays of --to are those that
`Fleet.predict` returns. --config=my.py names the file that registers parts of the run, such as
its method.
"""

import io
from pathlib import Path

import numpy as np
from absl import flags

from graphfl_jax.commands.common.command_line import FLAGS, launch
from graphfl_jax.commands.common.saved_models import chosen_models
from graphfl_jax.commands.common.text_tables import say
from graphfl_jax.data.files import open_npz, read_npz_array
from graphfl_jax.runs.checkpoint import write_bytes

flags.DEFINE_string("data", None, "File of arrays, written by np.savez, with the inputs x.")


def main() -> int:
    fleet = chosen_models(data="new.npz", to="predicted.npz")
    if Path(FLAGS.to).suffix not in ("", ".npz"):
        raise ValueError(f"to={FLAGS.to} gets arrays of np.savez; let it end with .npz")
    x = inputs(FLAGS.data)
    try:
        predictions = fleet.predict(FLAGS.client, x, FLAGS.at)
    except ValueError as error:
        raise ValueError(f"data={FLAGS.data}: {error}") from error
    content = io.BytesIO()
    np.savez(content, **predictions)
    write_bytes(Path(FLAGS.to), content.getvalue())
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in predictions.items())
    say(f"{FLAGS.to}: {shapes}, of {FLAGS.client} at {FLAGS.at}")
    return 0


def inputs(path: str) -> np.ndarray:
    """The array x of a file.

    Raises:
      ValueError: the file is damaged, or has no x.
      FileNotFoundError: there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"data={path} is not a file; correct the path")
    with Path(path).open("rb") as opened:
        file = open_npz(f"data={path}", opened)
        if "x" not in file.files:
            raise ValueError(f"data={path} has no array x; write it with np.savez(FILE, x=...)")
        return read_npz_array(f"data={path}", file, "x")


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main)
