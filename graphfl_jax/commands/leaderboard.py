"""Ranks the candidates of several logs of sweeps, also while the sweeps run.

    graphfl leaderboard runs/first
    graphfl leaderboard runs/part-* --to=leaderboard.md

Reads trials.jsonl, and the logs of shards, such as trials-2-of-8.jsonl, in the folders. A run
that several logs have counts once. If they have it with other data or other code, or have
different data sets of one name, nothing is ranked. With --to, the leaderboard is also written,
as .md with --top candidates, or whole as .json.
"""

from pathlib import Path

from absl import flags

from graphfl_jax.commands.common.command_line import FLAGS, launch, new_file_of_flag
from graphfl_jax.commands.common.text_tables import say
from graphfl_jax.commands.sweeping.leaderboard import leaderboards, markdown, print_boards
from graphfl_jax.commands.sweeping.trial_log import merged_logs
from graphfl_jax.runs.checkpoint import write_json, write_text

flags.DEFINE_multi_string("folders", [], "Folders of sweeps; the words without a flag.")
flags.DEFINE_integer("top", 10, "Rows that are printed.", lower_bound=1)
flags.DEFINE_string("to", None, "File to write, .json or .md; it must not exist.")


def main() -> int:
    to = new_file_of_flag(".json", ".md")
    if not FLAGS.folders:
        raise ValueError("folders is not set; name folders of sweeps, such as runs/first")
    lines, notes = merged_logs(list(dict.fromkeys(map(Path, FLAGS.folders))))
    boards = leaderboards(lines)
    print_boards(boards, FLAGS.top)
    for note in notes:
        say(note)
    if to is not None:
        if to.suffix == ".json":
            write_json(to, boards)
        else:
            write_text(to, markdown(boards, FLAGS.top))
        say(to)
    return 0


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main, keep_compiled=False, configured=False)
