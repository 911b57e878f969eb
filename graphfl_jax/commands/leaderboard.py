"""Ranks the points of several logs of sweeps, also while the sweeps run.

    graphfl leaderboard runs/first
    graphfl leaderboard runs/part-* --to=leaderboard.md

Reads trials.jsonl, and the logs of shards, such as trials-2-of-8.jsonl, in the folders. A run
that several logs have counts once. If they have it with other data or other code, or have
different data sets of one name, nothing is ranked. With --to, the leaderboard is also written,
as .md with --top points, or whole as .json.
"""

from pathlib import Path

from absl import flags
from rich.console import Console

from graphfl_jax.commands.common.command_line import FLAGS, check_new_file, launch
from graphfl_jax.commands.sweeping.leaderboard import leaderboards, markdown, print_boards
from graphfl_jax.commands.sweeping.trial_log import merged_logs
from graphfl_jax.runs.checkpoint import write_json, write_text

flags.DEFINE_multi_string("folders", [], "Folders of sweeps; the words without a flag.")
flags.DEFINE_integer("top", 10, "Rows that are printed.", lower_bound=1)
flags.DEFINE_string("to", None, "File to write, .json or .md; it must not exist.")


def main() -> int:
    to = Path(FLAGS.to) if FLAGS.to is not None else None
    if to is not None:
        if to.suffix not in (".json", ".md"):
            raise ValueError(f"to={to} has no known format; let it end with .json or .md")
        check_new_file("to", to)
    if not FLAGS.folders:
        raise ValueError("folders is not set; name folders of sweeps, such as runs/first")
    lines, notes = merged_logs(list(dict.fromkeys(map(Path, FLAGS.folders))))
    boards = leaderboards(lines)
    console = Console()
    print_boards(console, boards, FLAGS.top)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if to is not None:
        if to.suffix == ".json":
            write_json(to, boards)
        else:
            write_text(to, "\n".join(markdown(board, FLAGS.top) for board in boards))
        console.print(str(to), highlight=False, markup=False, soft_wrap=True)
    return 0


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main, keep_compiled=False, configured=False)
