"""The file with which Slurm makes the parts of a sweep, as one array of jobs."""

import shlex
import sys
from pathlib import Path

from graphfl_jax.commands.sweeping.trial_log import log_of

FILE = "array.sbatch"
FLAGS_OF_ARRAY = ("--array", "--tasks")  # which the tasks do not get
TASK = "$SLURM_ARRAY_TASK_ID"


def array_file(words: list[str], out: Path, tasks: int) -> str:
    """The content of a file for ``sbatch``, whose task I makes part I of a sweep.

    A task that is submitted again continues its log.

    Args:
      words: of the command line of the sweep.
      out: folder of the sweep.
      tasks: number of parts.
    """
    command = shlex.join(
        [sys.executable, "-m", "graphfl_jax", "sweep", *without_flags_of_array(words)]
    )
    return f"""#!/bin/bash
#SBATCH --job-name="{out.name}"
#SBATCH --array=1-{tasks}
#SBATCH --output="{out.absolute() / "slurm-%a.log"}"
set -euo pipefail
cd {shlex.quote(str(Path.cwd()))}
out={shlex.quote(str(out))}
resume=()
if [ -e "{log_of(Path("$out"), (TASK, tasks))}" ]; then resume=(--resume); fi
exec {command} \\
    --shard="{TASK}/{tasks}" ${{resume[@]+"${{resume[@]}}"}}
"""


def without_flags_of_array(words: list[str]) -> list[str]:
    """Words of a command line without the `FLAGS_OF_ARRAY` and their values."""
    rest, kept = iter(words), []
    for word in rest:
        name, equals, _ = word.partition("=")
        if f"--{name.lstrip('-')}" not in FLAGS_OF_ARRAY:
            kept.append(word)
        elif not equals:  # the next word is the value
            next(rest)
    return kept
