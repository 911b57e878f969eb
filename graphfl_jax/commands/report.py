"""Writes a page about a run, or about several.

    graphfl report runs/mine --to=report.html
    graphfl report runs/panacea-seed* runs/fedavg-seed* --to=comparison.html

The report is one HTML file that needs no network: a map of the clients, scores over rounds, a
table of the clients, and more. Of several runs, it also compares their methods.
"""

from pathlib import Path

from absl import flags

from graphfl_jax.commands.common.command_line import FLAGS, check_new_file, launch
from graphfl_jax.commands.common.text_tables import count_text, say
from graphfl_jax.commands.reporting.page import is_report, write_report

flags.DEFINE_multi_string("folders", [], "Folders of runs; the words without a flag.")
flags.DEFINE_string("to", "report.html", "File to write; a report that is there is replaced.")


def main() -> int:
    if not FLAGS.folders:
        raise ValueError("folders is not set; name the folder of a run, such as runs/mine")
    to = Path(FLAGS.to)
    if not is_report(to):
        if to.is_file():
            raise ValueError(f"to={to} exists and is no report; choose another --to")
        check_new_file("to", to)
    write_report([Path(run) for run in FLAGS.folders], to)
    runs = count_text(len(FLAGS.folders), "run")
    say(f"{to}: a report of {runs}, {to.stat().st_size / 1000:.0f} kB; open it in a browser")
    return 0


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main, keep_compiled=False, configured=False)
