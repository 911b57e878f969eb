"""Writes the model of one client of a run into a file.

    graphfl export runs/mine --client=Oslo --to=oslo.safetensors

`graphfl_jax.load` and ``graphfl predict`` read a .safetensors file. With --to=oslo.pt2 or
--to=oslo.onnx it is a program that predicts in PyTorch or ONNX, without this package.
--config=my.py names the file that registers parts of the run, such as its method.
"""

import jax

from graphfl_jax.commands.common.command_line import FLAGS, launch
from graphfl_jax.commands.common.saved_models import chosen_models
from graphfl_jax.commands.common.text_tables import say


def main() -> int:
    fleet = chosen_models(to="oslo.safetensors")
    fleet.export(FLAGS.client, FLAGS.to, FLAGS.at)
    count = sum(leaf.size for leaf in jax.tree.leaves(fleet.params(FLAGS.client, FLAGS.at)))
    say(f"{FLAGS.to}: the model of {FLAGS.client} at {FLAGS.at}, {count:,} parameters")
    return 0


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main)
