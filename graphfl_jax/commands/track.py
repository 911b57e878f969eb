"""Writes the evaluations of finished runs for TensorBoard, or sends them to Weights & Biases.

    graphfl track runs/mine --to=tensorboard
    graphfl track runs/* --to=tensorboard,wandb

Event files for TensorBoard are in the folder tensorboard of the run. With WANDB_MODE=offline in
the environment, those for Weights & Biases are in its folder wandb. The flag --track of
`graphfl run` does the same while the run is made.
"""

from pathlib import Path

from absl import flags

from graphfl_jax.commands.common.command_line import FLAGS, launch
from graphfl_jax.commands.common.finished_runs import read_rows, read_run
from graphfl_jax.commands.common.text_tables import say
from graphfl_jax.commands.common.trackers import TRACKERS, check_trackers
from graphfl_jax.runs.disk import why_not_writable, writing

flags.DEFINE_multi_string("folders", [], "Folders of runs; the words without a flag.")
flags.DEFINE_list("to", [], f"Services, {', '.join(TRACKERS)}.")


def main() -> int:
    if not FLAGS.folders:
        raise ValueError("folders is not set; name folders of runs, such as runs/mine")
    if not FLAGS.to:
        raise ValueError(f"to is not set; choose from {', '.join(TRACKERS)}")
    paths = list(dict.fromkeys(map(Path, FLAGS.folders)))
    runs = [(read_run(path), read_rows(path)) for path in paths]
    check_trackers("to", FLAGS.to)
    for path in paths:
        for name in FLAGS.to:
            folder = path / TRACKERS[name].FOLDER
            if folder.exists():
                raise ValueError(f"{folder} exists; remove it, or leave the run out")
        if why := why_not_writable(path):
            raise ValueError(f"folders={path} cannot be written ({why}); make it writable")
    for run, rows in runs:
        for name in FLAGS.to:
            with writing(run.path / TRACKERS[name].FOLDER):
                tracker = TRACKERS[name](run.path, run.fields)
                for row in rows:
                    tracker.write(row)
                tracker.close()
        say(f"{run.path}: {len(rows)} evaluations to {', '.join(FLAGS.to)}")
    return 0


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main, keep_compiled=False, configured=False)
