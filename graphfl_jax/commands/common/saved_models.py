"""Flags and checks of the commands that read the models of a run."""

import warnings
from pathlib import Path

from absl import flags

from graphfl_jax.commands.common.command_line import FLAGS, check_new_file, refuse_unread
from graphfl_jax.commands.common.configuration import OVERRIDES, contents_of, refuse_overrides
from graphfl_jax.runs.fleet import Fleet, load
from graphfl_jax.runs.models import POINTS

flags.DEFINE_string(
    "run", None, "Folder of a run, or a file of models; the word without a flag."
)
flags.DEFINE_string("client", None, "Name of the client.")
flags.DEFINE_enum(
    "at",
    "P",
    POINTS[::-1],
    "P: the model that the method prescribes for the client; G: the one that the server sends.",
)
flags.DEFINE_string("to", None, "File to write; it must not exist.")


def chosen_models(**needed: str) -> Fleet:
    """The models of --run, after a check of the other flags. The file of --config is executed.

    It warns if the client of --client has trained in no round.

    Args:
      **needed: further flags that must be set, each with an example of a value.

    Raises:
      ValueError: a flag is missing or not read, --to exists or cannot be written, --config is
        no file, or there is no such client.
      OSError: there is no such folder or file.
    """
    if FLAGS.run is None:
        raise ValueError("run is not set; name the folder of a run, such as runs/mine")
    for flag, example in {"client": "Oslo", **needed}.items():
        if not FLAGS[flag].value:
            raise ValueError(f"{flag} is not set; add --{flag}={example}")
    check_new_file("to", Path(FLAGS.to))
    refuse_unread("data_root")
    refuse_overrides(dict.fromkeys(OVERRIDES, "saved models have their configuration"))
    if FLAGS.config is not None:
        contents_of("config", FLAGS.config)  # which registers own parts
    fleet = load(FLAGS.run)
    if fleet.rounds_trained(FLAGS.client) == 0:
        warnings.warn(
            f"client={FLAGS.client} trained in none of the {fleet.facts['round']} rounds, so a "
            f"model that {fleet.facts['method']} keeps for it alone is untrained; play more "
            f"rounds, or choose another client",
            RuntimeWarning,
            stacklevel=2,
        )
    return fleet
