"""The checks that every method must pass, for methods of the user's own.

import graphfl_jax as g

g.testing.check_algorithm("myprox")
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphfl_jax.configs.base import methods
from graphfl_jax.declarations import NOTHING
from graphfl_jax.settings import Choice
from graphfl_jax.testing import checks
from graphfl_jax.testing.subject import LeftOut, Subject

__all__ = ["CHECKS", "check_algorithm"]

CHECKS = (
    checks.a_round_keeps_the_shape_of_the_state,
    checks.all_floats_are_read,
    checks.message_sizes_are_those_of_the_messages,
    checks.a_client_computes_the_same_compiled_and_not,
    checks.neither_rounds_nor_floats_recompile,
    checks.a_run_in_pieces_is_the_whole_run_bit_for_bit,
    checks.values_of_padding_change_nothing,
    checks.renaming_clients_renames_the_results,
    checks.relations_have_an_effect_exactly_where_they_are_needed,
    checks.it_learns_what_only_personal_models_can,
    checks.divergence_is_reported_with_its_round,
    checks.an_untrained_client_uploads_what_the_method_says,
    checks.rows_of_padding_change_nothing,
    checks.a_cohort_of_one_client_plays_rounds,
    checks.vmapped_runs_are_the_looped_ones,
    checks.a_sharded_round_is_the_unsharded_one,
    checks.a_sharded_evaluation_is_the_unsharded_one,
    checks.new_clients_join_and_train,
    checks.a_round_without_attackers_is_an_honest_one_bit_for_bit,
    checks.poison_of_lambda_minus_one_is_honest_bit_for_bit,
    checks.a_defence_keeps_the_shape_of_the_state,
)
# These also get a folder.
WITH_FOLDER = (
    checks.a_checkpoint_restores_the_state,
    checks.saved_models_have_the_scores_of_the_run,
    checks.a_resumed_run_ends_like_an_uncut_one,
)


def check_algorithm(
    name: str,
    *,
    settings: Mapping[str, Any] = NOTHING,
    report: Callable[[str], None] = print,
) -> None:
    """Makes the checks that every method must pass with a method, on small federations.

    Args:
      name: of the method, as after the colon in ``graphfl run tpt48:NAME``.
      settings: other fields of its configuration.
      report: called with a line for every check: passed, left out or failed.

    Raises:
      ValueError: the method is unknown, or a field does not fit.
      AssertionError: checks failed, which are named.
    """
    name = name.replace("_", "-")
    Choice("name", tuple(methods())).check("name", name)
    subject = Subject(name, settings)
    subject.config()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for check in (*CHECKS, *WITH_FOLDER):
            arguments: list[Any] = [subject]
            if check in WITH_FOLDER:
                arguments.append(Path(folder, check.__name__))
                arguments[-1].mkdir()
            if not _passes(check, *arguments, report=report):
                failed.append(check.__name__)
    if failed:
        total = len(CHECKS) + len(WITH_FOLDER)
        raise AssertionError(
            f"{name} fails {len(failed)} of {total} checks: {', '.join(failed)}"
        )


def _passes(check, *arguments, report) -> bool:
    """Whether a check does not fail; it may be left out."""
    began, shown = time.perf_counter(), check.__name__.replace("_", " ")
    try:
        check(*arguments)
    except LeftOut as why:
        report(f"left out  {shown}: {why}")
    except Exception as error:  # whatever the user's method raises
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        report(f"failed    {shown}: {type(error).__name__}: {first}")
        return False
    else:
        report(f"passed    {shown} ({time.perf_counter() - began:.1f} s)")
    return True
