"""One run from configuration to results, in memory or in a folder."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment, arrange, build_experiment, load_federation
from graphfl_jax.configs.values import as_text, complete, values_of
from graphfl_jax.core import State
from graphfl_jax.data.federation import Federation
from graphfl_jax.memory import bytes_of
from graphfl_jax.program import NOBODY, Participation, in_total
from graphfl_jax.register import choose_parts
from graphfl_jax.runs import checkpoint, models, stopping, views
from graphfl_jax.runs.debug import DebugSession
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.executables import open_kept, private_folder
from graphfl_jax.runs.folder import RunFolder
from graphfl_jax.runs.identity import (
    FILE_FIELDS,
    PATHS,
    digest_of_arrays,
    digests_of_code,
    identity_of,
)
from graphfl_jax.runs.initial import Beginning
from graphfl_jax.runs.multihost import (
    assert_same_on_all,
    barrier,
    from_first,
    is_first,
    run_synchronized,
)
from graphfl_jax.runs.results import (
    Course,
    check_attacked,
    description_of,
    ids_scored,
    names_scored,
    new_client_scores,
    new_seconds,
    results_of,
    rounds_trained,
    row_fields,
    row_of,
)
from graphfl_jax.runs.session import (
    Evaluation,
    Session,
    clock,
    ended_at,
    fetch,
    inputs_of,
    mesh_of,
    place,
    play,
    program_at_sizes,
    program_of,
    scope_of,
    traffic_of,
)
from graphfl_jax.runs.streamed import StreamedSession, without_examples


@dataclasses.dataclass(frozen=True, repr=False)  # of the table that `views.Viewed` prints
class Result(views.Viewed):
    """A finished run."""

    results: dict  # what results.json holds, with NaN for null
    rows: list[dict]  # one per evaluation, see `results.row_of`
    state: State | None  # after the last round; None of a run that was read from its folder
    diverged_at: int  # the round that ended the run, or made a score at P not finite; or -1
    final: dict | None  # all scores after the last round; None for a run that ended before
    # With the relations, new clients and attackers of the run; None of one that was read
    federation: Federation | None
    unsaved: int = 0  # bytes of the models, if they are too many to be saved by default
    clients: tuple[str, ...] = ()  # names of those that were scored
    # Of this start alone; `results` have the times of all. None of a run that was read
    seconds: dict[str, float] | None = None


class _Record(NamedTuple):
    """What a run writes and reports while it is played."""

    config: Any  # a `ConfigDict`, whose fields have no types
    experiment: Experiment
    folder: RunFolder | None
    session: Any
    rows: list[dict]  # of the evaluations so far
    seconds: dict[str, float]
    report: Callable[[dict[str, Any]], Any]

    def add(self, evaluation: Evaluation, saved: int) -> tuple[str, int]:
        """Adds an evaluation.

        Args:
          saved: the round of the newest checkpoint.

        Returns:
          Why the run ends after it, or an empty text; and the round of the newest checkpoint.
        """
        played, state, log, chosen, _, _ = evaluation
        task, rounds = self.experiment.model.task, self.config.rounds
        self.rows.append(jax.tree.map(np.asarray, row_of(played, log, chosen)))
        stopped = stopping.stops(self.config, self.rows, task)
        due = stopped or played == rounds or played - saved >= self.config.checkpoint_every
        run_synchronized(self._write, state, due)
        fields = row_fields(self.rows[-1], task, self.experiment.federation.clients)
        if stopping.is_asked(self.report(fields)) and not stopped and played < rounds:
            stopped = "report returned True"
            if not due:
                run_synchronized(self._save, state)
        return stopped, played if due or stopped else saved

    def _write(self, state, due):
        if self.folder is not None:
            self.folder.append(self.rows[-1])
            if due:
                self._save(state)

    def _save(self, state):
        if self.folder is not None:
            self.folder.save(state, self.rows, self.seconds, self.session.saved())


def run(
    config: ConfigDict,
    federation: Federation | None = None,
    *,
    model: str | Callable | None = None,
    algorithm: str | Callable | None = None,
    out: str | os.PathLike | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    config_file: str | os.PathLike | None = None,
    debug: bool = False,
    report: Callable[[dict[str, Any]], Any] = lambda row: None,
    keep_in: str | os.PathLike | bool | None = True,
    save_models: bool = False,
) -> Result:
    """Runs the federation that a configuration describes.

    If `jax.distributed` has connected several processes, all must call this with the same
    arguments. Their devices share each cohort. Only the first process reads and writes `out`.

    Args:
      config: a configuration, see `graphfl_jax.configs`.
      federation: from `from_arrays`, instead of the one that ``config.data`` names.
      model: a client model instead of ``config.model.name``: a name, or a function, which is
        registered under its own name, see `register.model`.
      algorithm: a method instead of ``config.algorithm.name``: a name or a function.
      out: folder for config.json, identity.json, federation.json, metrics.jsonl, checkpoints,
        models.safetensors and results.json; None writes nothing.
      resume: continues the run in `out` from its newest valid checkpoint, or from round 0. With
        the same versions and type of device, the results are bitwise those of an uncut run.
      accept_changes: resumes although the code has changed. Both identities are recorded.
      config_file: the file from which `config` comes; it belongs to the run's identity.
      debug: computes clients one by one without ``jit``, and names what fails. This is slow.
      report: called after every evaluation with a dictionary, as a line of metrics.jsonl. If
        it returns True, the run ends there; the results say so.
      keep_in: folder of compiled programs, into which only the user may write; True is that of
        the commands, in the user's cache; None keeps none. The last four also stay in memory.
      save_models: writes models.safetensors into `out` also if it has more than 100 MB.

    Returns:
      The results, and the state of the federation after the last round.

    Raises:
      ValueError: a field, the data or the folder does not fit. One line; nothing is written.
      OSError: a file is missing, or cannot be written.
    """
    _check_arguments(out, resume, accept_changes, save_models)
    config = choose_parts(complete(config), model=model, algorithm=algorithm)
    options = {"resume": resume, "accept_changes": accept_changes}
    folder, experiment = run_synchronized(_prepare, config, federation, out, debug, options)
    return run_experiment(
        experiment,
        config,
        folder=folder,
        config_file=config_file,
        debug=debug,
        report=report,
        executables=private_folder(keep_in),
        save_models=save_models,
    )


def _prepare(config, federation, out, debug, options):
    """The folder of a run, in the first process, and its experiment, both checked."""
    folder = None
    if out is not None and is_first():
        folder = RunFolder(out, config, **options)
    experiment = build_experiment(config, _federation_of(config, federation))
    check_attacked((config, experiment))
    if experiment.on_host and debug:
        raise ValueError(
            f"data.storage={config.data.storage!r} keeps the examples on the host, and --debug "
            f"needs all on the device; set --config.data.storage=device"
        )
    return folder, experiment


def _check_arguments(out, resume, accept_changes, save_models):
    """Refuses arguments of `run` that exclude each other."""
    if resume and out is None:
        raise ValueError("resume=True needs the folder of the run; set --out")
    if save_models and out is None:
        raise ValueError("save_models=True needs a folder; set --out")
    if accept_changes and not resume:
        raise ValueError("accept_changes=True is not read without resume=True; leave it out")


def _federation_of(config, federation):
    """The federation that a configuration names, or a given one arranged as it says."""
    if federation is None:
        return load_federation(config)
    if not isinstance(federation, Federation):
        raise ValueError(
            f"federation={federation!r} is no federation; give that of from_arrays, or set "
            f"data.path in the configuration"
        )
    values, _ = values_of(config)
    remedies: dict[tuple[str, Any], str] = {
        ("scale", "none"): "give scale={value!r} to from_arrays",
        ("task", ""): "give task={value!r} to from_arrays",
        ("edges", ""): "give edges to from_arrays",
        ("images", "channels_last"): "give np.moveaxis(x, 1, -1) to from_arrays",
    }
    if "val" not in federation.data.evals:
        remedies["val_fraction", 0.0] = "give val_fraction={value!r} to from_arrays"
    for (name, unset), remedy in remedies.items():
        value = values.get(f"data.{name}", unset)
        if value != unset:
            raise ValueError(
                f"data.{name}={value} is not read, since a federation is given; leave it out, "
                f"and {remedy.format(value=value)}"
            )
    return arrange(config, federation)


def run_experiment(
    experiment: Experiment,
    config: ConfigDict,
    *,
    folder: RunFolder | None = None,
    config_file: str | os.PathLike | None = None,
    debug: bool = False,
    report: Callable[[dict[str, Any]], Any] = lambda row: None,
    executables: Path | None = None,
    save_models: bool = False,
) -> Result:
    """Runs an experiment that is already built; other arguments are as in `run`.

    Args:
      folder: of the run; None writes nothing, as in all processes but the first.
      executables: folder from `executables.private_folder`, only for an experiment as
        `build_experiment` returns it; None keeps nothing.

    Raises:
      ValueError: the folder holds another run, or has another state in its checkpoint.
    """
    federation, where = experiment.federation, environment()
    callables = (experiment.build, experiment.poison)
    code = run_synchronized(lambda: digests_of_code(config_file, callables=callables))
    identity = identity_of(config, federation, digest_of_arrays(federation), code)
    recorded = from_first({"init": run_synchronized(lambda: folder.init if folder else "")})
    beginning = Beginning(config, experiment, recorded["init"])
    identity |= beginning.identity
    assert_same_on_all(
        {
            "configuration": as_text(values_of(config)[0], without=PATHS),
            "data": identity["data"] + identity["arrays"],
            **{field: identity.get(name, "") for name, field in FILE_FIELDS.items()},
            "code": json.dumps(code),
            "versions": json.dumps(where["versions"]),
            "debug": str(debug),
        }
    )
    run_synchronized(lambda: folder and folder.check(identity))  # before it compiles
    compiled = functools.partial(compile_session, executables=executables)
    make = DebugSession if debug else compiled
    try:
        return _play_experiment(beginning, folder, identity, where, make, report, save_models)
    finally:
        if folder is not None:
            folder.close()


def _play_experiment(beginning, folder, identity, where, make, report, save_models):
    """Plays an experiment, whose session `make` makes, from its start or from a checkpoint."""
    experiment, config = beginning.experiment, beginning.config
    task, clients = experiment.model.task, experiment.federation.clients
    seconds, final, ended, predictors = new_seconds(), None, -1, ()
    with clock(seconds, "compile"):
        session = make(experiment, config)
    state = session.state
    traffic = traffic_of(session.kept, experiment)
    newest = run_synchronized(
        lambda: folder and folder.begin(state, task, clients, identity, where)
    )
    run_synchronized(lambda: folder and folder.describe(description_of(experiment)))
    newest = checkpoint.from_first(newest, state)
    state, rows, earlier = _start(newest, beginning, session, seconds)
    before = (Participation(**row["participation"]) for row in rows)
    participation, saved = in_total([NOBODY, *before]), int(state.round)
    record = _Record(config, experiment, folder, session, rows, seconds, report)
    stopped = stopping.stops(config, rows, task)
    for evaluation in () if stopped else play(session, config, state, seconds):
        played, state, log, chosen, final, predictors = evaluation
        participation = in_total([participation, log.participation.sparse()])
        ended = ended_at(log, participation, final or chosen, played)
        if ended >= 0:
            break
        stopped, saved = record.add(evaluation, saved)
        if stopped:
            break

    joined, unsaved = None, 0
    if ended < 0 and final is None:  # it was stopped, or all rounds had been played before
        final, predictors = fetch(session.evaluate(state))
        ended = ended_at(None, participation, final, int(state.round))
    if ended < 0:
        last, joined = _join(session, experiment, config, state, seconds)
        shared = from_first({"kept": folder is not None, "unasked": not save_models})
        if shared["kept"]:
            trained = rounds_trained(participation, ids_scored(experiment))
            of_models = (state, last, predictors, trained)
            unsaved = _save_models(
                folder, session, experiment, config, *of_models, unasked=shared["unasked"]
            )
    final = final if ended < 0 else None
    origin = where | {
        "identity": folder.identity if folder else identity,
        "accepted_changes": folder.accepted_changes if folder else [],
    }
    played = int(state.round)
    course = Course(rows, participation, final, joined, played, seconds, traffic, stopped)
    results = results_of(config, experiment, course, origin)
    run_synchronized(lambda: folder and folder.finish(results))
    if ended < 0 and results["diverged"]:
        ended = participation.since if participation.since > 0 else int(state.round)
    spent = {what: seconds[what] - earlier.get(what, 0.0) for what in seconds}
    about = (final and final.scores, experiment.federation, unsaved, names_scored(experiment))
    return Result(results, rows, state, ended, *about, spent)


def compile_session(
    experiment: Experiment, config: ConfigDict, *, executables: Path | None = None
) -> Session | StreamedSession:
    """A compiled session on the devices of all processes, which split the cohort.

    `executables` is as in `run_experiment`.
    """
    mesh = mesh_of(experiment)
    data = without_examples(experiment.federation.data) if experiment.on_host else None
    inputs = inputs_of(experiment, values_of(config)[0]["seed"], mesh, data=data)
    kept = open_kept(executables, experiment, config, inputs)
    if experiment.on_host:
        program = program_at_sizes(experiment, config, mesh)
        return StreamedSession(program, inputs, experiment, config, kept)
    program = program_of(experiment, config, mesh, models=models.LARGEST)
    session = Session(program, inputs, scope=scope_of(config), kept=kept)
    barrier()  # compiling takes some longer than the 30 s in which a mesh must connect
    return session


def _join(session, experiment, config, state, seconds):
    """The last state with the new clients, and their `results.new_client_scores`.

    Both are None without new clients. The state is None if they diverged.
    """
    federation, task, after = experiment.federation, experiment.model.task, []
    if not federation.new_clients:
        return None, None
    with clock(seconds, "new_clients"):
        everyone = place(federation.everyone, session.inputs.key.sharding)
        for last, scores in session.join(state, everyone, config.new_clients.rounds):  # noqa: B007
            after.append(scores)
        scored = new_client_scores(federation, after, task, experiment.joined)
    return last if scored["diverged_at"] < 0 else None, scored


def _start(newest, beginning, session, seconds):
    """The state that is played on, its rows, and the times of earlier starts, which it adds.

    Args:
      newest: the checkpoint that is resumed; None begins anew.
    """
    if newest is None:
        return beginning.state(session), [], {}
    earlier, like = newest.notes["seconds"], session.state
    for what in seconds:
        seconds[what] += earlier.get(what, 0.0)
    state = jax.tree.map(lambda leaf, like: place(leaf, like.sharding), newest.state, like)
    session.restore(newest.clients)
    return state, RunFolder.rows(newest), earlier


def _save_models(
    folder, session, experiment, config, state, last, predictors, trained, *, unasked
):
    """Writes the models of all clients; returns their bytes if they are too many.

    Args:
      last: the state with the new clients, if there is one.
      predictors: those of the training clients; () if they are too large for an evaluation.
      trained: from `rounds_trained`.
      unasked: whether a large file is not written.
    """
    program, inputs, size = session.program, session.inputs, bytes_of(predictors)
    if experiment.on_host:
        size = session.kept.remember("bytes of models", lambda: session.bytes_of_models(state))
    elif last is not None:
        predictors_of_all = functools.partial(program.predictors, joined=True)
        everyone = place(experiment.federation.everyone, inputs.key.sharding)
        inputs = inputs._replace(data=everyone)
        size = bytes_of(jax.eval_shape(predictors_of_all, last, *inputs))
    elif not predictors:
        size = session.kept.remember(
            "bytes of models",
            lambda: bytes_of(jax.eval_shape(program.predictors, state, *inputs)),
        )
    if unasked and size > models.LARGEST:
        return size
    parts = [jax.device_get(predictors or session.predictors(state))]
    if last is not None:
        parts.append(jax.device_get(predictors_of_all(last, *inputs)))
    groups = models.groups_of(experiment, *parts)
    facts = models.facts_of(experiment, config, int(state.round), trained)
    run_synchronized(lambda: folder and models.write(folder.file(models.FILE), groups, facts))
    return 0
