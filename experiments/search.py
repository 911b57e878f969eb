"""Searches the rates of methods on validation, and keeps the grids, the runs and the choices.

    python -m experiments.search --config=fl60 --methods=fedavg,ditto --data_root=DIR
    python -m experiments.search --config=tpt48 --methods=all --out=runs/search-tpt48

experiments/searches.json has for each configuration the fields that its search sets, also those
of single methods, the number of seeds, and the point at which it starts: values of floats of
hparams. With `scan`, it starts at the best of several values of one of them. With `after`, a
search has the settings of the one named there, and a method starts at what that has chosen for
it. A method has those floats that it reads and that do not define it. Their values are of the
numbers 1, 3, 10, 30, ... and so on, up and down. A search tries the start and all points that
differ in one value, which is the next lower or higher one. It goes on from the best point that
it has tried, until no neighbour is better by 1e-4 of it, so that the best value is never at the
edge of a grid. Beside accuracies, a loss must be better by 0.001. The order is that of `graphfl
sweep`: by the validation score at P, and among equal scores by the validation loss. If all runs
diverge, all values become lower. With `stable`, a point beside one with a diverged run is
passed over. With `final_seeds`, the three best points then get runs with more seeds, and the
choice is the best of these. A line names each move. --methods=all is all methods that fit, and
a warning names the others; --methods=missing is those of them that have no kept results.

OUT/METHOD/trials.jsonl gets a line for each run when it ends. The same command with the same
--out continues, and does not repeat these runs; those of other code need --accept_changes. At
the end search.json has for each method the path, the scores and losses of all points, and the
choice, and search.md the choices. With --keep, each method's result is kept in
experiments/searched when its search has ended, and its rates become those of the configuration.
Methods without a kept result keep their rates. search.json and search.md then have all methods
that are kept.
"""

import time
from pathlib import Path

from absl import flags

from experiments.common import pages
from experiments.paper.rate_search import ALL, design_of_flags, fitting, keep, searched, text_of
from graphfl_jax.commands.common.command_line import FLAGS, launch
from graphfl_jax.commands.common.configuration import refuse_overrides
from graphfl_jax.commands.common.text_tables import say

flags.DEFINE_list(
    "methods", [ALL], "Methods of the configuration; all that fit, or the missing ones of them."
)
flags.DEFINE_integer("seeds", None, "Runs of a point; by default the search's.", lower_bound=1)
flags.DEFINE_integer("moves", 12, "Largest number of moves of a search.", lower_bound=0)
flags.DEFINE_integer(
    "at_once", 0, "Runs in one program; 0 is the number of seeds.", lower_bound=0
)
flags.DEFINE_bool(
    "keep", False, "Keep the results in this checkout, and give the rates to the configuration."
)
flags.DEFINE_string("out", "runs/searches", "Output folder, with a log for each method.")


def main() -> int:
    started = time.perf_counter()
    pages.check_page()
    refuse_overrides({"seed": "the runs have the seeds 0, 1, ... of --seeds"})
    design, out = design_of_flags(), Path(FLAGS.out)
    plans, left_out = fitting(design)
    results = {"searched": [], "left_out": left_out}
    if FLAGS.keep:
        results = keep(results, design)
    for plan in plans:
        row = searched(plan, out / plan.method)
        if not FLAGS.keep:
            results["searched"].append(row)
        elif row["ended"]:
            results = keep(results | {"searched": [row]}, design)
    text = text_of(results["searched"])
    pages.write_results(out, "search", results, text, since=started)
    say(f"{out}/search.md and .json")
    return 0


if __name__ == "__main__":
    launch(main)
