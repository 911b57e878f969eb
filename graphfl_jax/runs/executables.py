"""Executables: the compiled functions of a session, kept in a folder for the next start.

A start that finds them traces, lowers and compiles nothing. JAX's own cache only saves the
compilation. The last few sessions also stay in memory, for the next run of this process. The
folder has two kinds of files:

    entry       of a configuration: for each function, the key of its program and the structure
                of its result. The key is `description`.
    program     an executable. The key is the text of the lowered program, with the machine.

So a change of the source code after which a program is the same compiles nothing either.
Programs that are kept here are compiled without JAX's cache: on CPUs, an executable that comes
from that cache cannot be serialised (JAX 0.10 and 0.12 leave out its functions).
"""

import contextlib
import hashlib
import json
import os
import pickle
import platform
import tempfile
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment
from graphfl_jax.configs.values import structure
from graphfl_jax.core import State
from graphfl_jax.data.files import cache_folder
from graphfl_jax.evaluation import Scope
from graphfl_jax.program import Compiled
from graphfl_jax.runs.environment import processor_lines, versions
from graphfl_jax.runs.identity import (
    PATHS,
    PROGRAMS,
    SOURCE,
    STOP,
    digests_of_files,
    digests_outside,
    functions_in,
)
from graphfl_jax.runs.program_cache import DIGEST, digest, is_mine, make_private

MOST_BYTES = 500_000_000  # of all files in a folder; the least recently used are removed
MOST_SESSIONS = 4  # whose executables stay in memory; the least recently used are removed
# Fields that enter no program, or only by the shapes of its inputs.
OUTSIDE = {"seed", "rounds", "init_from", "eval_every", "checkpoint_every", *STOP, *PATHS}
# Lines of /proc/cpuinfo that say for which processor an executable is.
PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")


IN_MEMORY = {}  # `Kept` by folder and key, the last used last
LOCK = threading.Lock()  # of `IN_MEMORY`
# Compiles one program after the other: two at once take more memory, and the setting of JAX's
# cache is that of the process. A process that ends waits for it.
COMPILER = ThreadPoolExecutor(1, thread_name_prefix="compiler")


class Kept:
    """What is kept of one experiment; without a folder, nothing."""

    def __init__(self, folder: Path | None = None, key: str = ""):
        """Reads the entry of a key in a folder from `private_folder`, if there is one."""
        self.folder, self.key = folder, key
        self.entry = (folder and _read(folder, key)) or {}
        self.ready: dict[str, Callable] = {}  # executables of this process, by name
        self.coming: dict[str, Future] = {}  # those that are being compiled
        self.lock = threading.Lock()  # of the entry, to which both threads add

    def remember(self, name: str, compute: Callable[[], Any]) -> Any:
        """The kept value of a name, or else what `compute` returns, which is then kept."""
        return self.entry[name] if name in self.entry else self._keep(name, compute())

    def _keep(self, name, value):
        with self.lock:
            self.entry[name] = value
            if self.folder:
                _write(self.folder, self.key, self.entry)
        return value

    def begin(self, program: Compiled, inputs: tuple, scope: Scope | None) -> State:
        """The first state of inputs of these shapes; then there is an `executable` "advance".

        The one of "evaluate_chosen" is compiled while the first rounds play. If several
        processes share the rounds, it is compiled too: none may make the others wait.

        Args:
          scope: what the evaluations before the last round compute; None: there is none.
        """
        start = self.get("start", program.start, inputs, inputs, options_of_one_call())
        state = start(*inputs)
        options, arguments = options_of_architectures(len(state.clients)), (state, *inputs)
        one_round, evaluate = (*arguments, jnp.int32(1)), program.evaluate
        self.prepare("advance", program.advance, one_round, inputs, options)
        if scope is not None:
            self.prepare("evaluate_chosen", evaluate, arguments, inputs, options, scope=scope)
        self.executable("advance")
        if jax.process_count() > 1:
            self.wait()
        return state

    def executable(self, name: str) -> Callable:
        """The executable of a name, as soon as it is compiled.

        Raises:
          Exception: what its compilation has raised.
        """
        coming = self.coming.get(name)
        if coming is not None:
            try:
                coming.result()
            finally:
                self.coming.pop(name, None)
        return self.ready[name]

    def wait(self) -> None:
        """Waits until all that has begun is compiled."""
        for name in list(self.coming):
            self.executable(name)

    def call(
        self, name: str, function: Callable, state: State, inputs: tuple, **static: Any
    ) -> Any:
        """Calls a function (state, *inputs) after the rounds; its executable has a name."""
        options = options_of_one_call() | options_of_architectures(len(state.clients))
        arguments = (state, *inputs)
        return self.get(name, function, arguments, inputs, options, **static)(*arguments)

    def get(self, name: str, *arguments: Any, **static: Any) -> Callable:
        """The `executable` of a function, after `prepare` with these arguments."""
        self.prepare(name, *arguments, **static)
        return self.executable(name)

    def prepare(
        self,
        name: str,
        function: Callable,
        arguments: tuple,
        inputs: tuple,
        options: dict[str, Any],
        **static: Any,
    ) -> None:
        """Makes the executable of a function ready if it is kept, or begins to compile it.

        Args:
          name: under which it is kept; always of arguments of the same shapes.
          inputs: of the session; their key has the devices.
          options: of XLA.
          **static: further arguments, which are not traced.
        """
        if name in self.ready or name in self.coming:
            return
        if name in self.entry:
            executable = self._read_executable(inputs, arguments, *self.entry[name])
            if executable is not None:
                self.ready[name] = executable
                return
        lowered, key, kept = function.lower(*arguments, **static), "", None
        result = jax.tree.unflatten(lowered.out_tree, [0] * lowered.out_tree.num_leaves)
        if self.folder and _can_be_pickled(result):
            text = "\n".join((lowered.as_text(), *_shapes(arguments), machine()))
            key = _sha256(text.encode()).hex()
            kept = self._read_executable(inputs, arguments, key, result)
        if kept is None:
            job = _Lowered(name, lowered, options, key, result)
            self.coming[name] = COMPILER.submit(self._compile, job)
        else:
            self.ready[name] = kept
            self._keep(name, (key, result))

    def _read_executable(self, inputs, arguments, key, result):
        """The executable of a key, for arguments and results of these structures.

        None if it is missing, or cannot be loaded, and is compiled anew.
        """
        blob = _read(self.folder, key)
        if blob is None:
            return None
        sharding = inputs.key.sharding
        meshed = isinstance(sharding, NamedSharding)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            return serialize_executable.deserialize_and_load(
                blob,
                jax.tree.structure((tuple(arguments), {})),
                jax.tree.structure(result),
                execution_devices=list(
                    sharding.mesh.devices.flat if meshed else sharding.device_set
                ),
            )

    def _compile(self, job):
        """Makes the executable of a lowered function ready, and keeps it if it has a key."""
        with without_cache_of_jax() if job.key else contextlib.nullcontext():
            self.ready[job.name] = _compiled(job)
        if not job.key:
            return
        try:
            blob = serialize_executable.serialize(self.ready[job.name])[0]
        except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
            return  # JAX cannot on this device, or it is from JAX's cache
        _write(self.folder, job.key, blob)
        self._keep(job.name, (job.key, job.result))


class _Lowered(NamedTuple):
    """A lowered function that has to be compiled."""

    name: str
    lowered: jax.stages.Lowered
    options: dict[str, Any]
    key: str = ""  # under which it is kept
    result: Any = None  # a tree of the structure of its result


def _compiled(each):
    # JAX shares only executables without options.
    return each.lowered.compile(each.options or None)


def open_kept(
    folder: Path | None, experiment: Experiment, config: ConfigDict, inputs: tuple
) -> Kept:
    """Opens what a folder and this process keep of an experiment of `build.build_experiment`.

    Nothing is kept without a folder, with several processes, and where the key does not contain
    all code of the experiment: with methods, models or others registered from outside.
    """
    outside = digests_outside(functions_in(PROGRAMS))
    if folder is None or jax.process_count() > 1 or outside:
        return Kept()
    key = folder, description(experiment, config, inputs)
    with LOCK:
        kept = IN_MEMORY[key] = IN_MEMORY.pop(key, None) or Kept(*key)
        for unused in list(IN_MEMORY)[:-MOST_SESSIONS]:
            del IN_MEMORY[unused]
    return kept


def description(experiment: Experiment, config: ConfigDict, inputs: tuple) -> str:
    """All that the trace and the compilation of an experiment's program depend on.

    Floats of `hparams`, seeds, keys and data are inputs of the program, so only their names and
    shapes count; the data's hash is included all the same. Constants of the program are the
    scale of the targets, pretrained weights, and when clients are up.
    """
    federation, files = experiment.federation, digests_of_files(config)
    facts = {
        "settings": structure(config, without=OUTSIDE),
        "files": files,
        "names": "trace" in files and federation.clients,
        "data": (federation.sha256, federation.task, federation.outputs, federation.units),
        "clients": (len(federation.clients), federation.new_clients),
        "groups": [
            group._replace(ids=_as_list(group.ids), scored=_as_list(group.scored))
            for group in experiment.groups
        ],
        "inputs": _shapes(inputs),
        "source": SOURCE,
        "machine": machine(),
    }
    return json.dumps(facts)


def _as_list(ids):
    return ids is not None and ids.tolist()


def machine() -> str:
    """The versions, devices, processor and settings that an executable depends on."""
    allowed = getattr(os, "sched_getaffinity", lambda process: range(os.cpu_count()))
    client = jax.local_devices()[0].client
    facts = {
        "versions": versions(),
        "platform": (platform.platform(), client.platform, client.platform_version),
        "devices": [(device.id, device.device_kind) for device in jax.devices()],
        "processor": _processor(),
        "cores": len(allowed(0)),
        "flags": [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
        # As they are here: a context can replace a value of the process.
        "jax": {
            name: str(getattr(jax.config, name))
            for name in sorted(jax.config.values)
            if "cache" not in name and hasattr(jax.config, name)
        },
    }
    return json.dumps(facts)


def options_of_one_call() -> dict[str, Any]:
    """Options of XLA for a program that is called once, unless its own flags set them.

    On CPUs, generators of random numbers take long to compile. At the first level of
    optimisation they take half the time, and the results have the same bits.
    """
    return _unless_set({"xla_backend_optimization_level": 1})


def options_of_architectures(number: int) -> dict[str, Any]:
    """Options of XLA for the rounds and evaluations of clients of so many architectures.

    With several, a program has many networks, which take long to compile on CPUs. With these
    options, FedAvg of a residual network takes 0.45 to 0.8 of the time to compile and as long
    to run, and the results have the same bits.
    """
    if number == 1:
        return {}
    return _unless_set(
        {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
    )


def _unless_set(options):
    """The options on CPUs, without those that the flags of XLA set."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for name, value in options.items() if name not in flags}


def private_folder(keep_in: str | os.PathLike | bool | None) -> Path | None:
    """The folder of executables inside a folder of compiled programs; it is made.

    If it cannot be made, the result is None, with a warning.

    Args:
      keep_in: True is the folder of compiled programs in the user's cache; None is no folder.

    Raises:
      ValueError: others may write into one of the folders, see `program_cache.check_private`.
        Of the user's cache, it is a warning.
    """
    if not keep_in:
        return None
    folder = cache_folder() / "compiled" if keep_in is True else Path(keep_in)
    path = folder / "executables"
    try:
        return make_private(make_private(folder) / path.name)
    except (OSError, ValueError) as error:
        if keep_in is not True and isinstance(error, ValueError):
            raise
        warnings.warn(
            f"compilation_cache={folder}: executables are not kept in {path} ({error}); set "
            f"--compilation_cache, in Python keep_in, to another folder, or to nothing",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _can_be_pickled(result):
    """Whether a structure can be kept. A class defined inside a function cannot."""
    try:
        restored = pickle.loads(pickle.dumps(result))
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return jax.tree.structure(restored) == jax.tree.structure(result)


def _shapes(values):
    """The structure, types and devices of a tree of arrays, as lines of text."""
    leaves, structure = jax.tree.flatten(values)
    return [str(structure)] + [
        f"{jax.typeof(leaf)} {jax.typeof(leaf).weak_type} {leaf.sharding} {leaf.committed} "
        f"{sorted(device.id for device in leaf.sharding.device_set)}"
        for leaf in leaves
    ]


@contextlib.contextmanager
def without_cache_of_jax():
    """Compiles without JAX's cache, whose setting is read once until it is reset."""
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _processor():
    """The model and the features of the first processor; outside Linux, only its kind."""
    lines = [line for line in processor_lines() if line.startswith(PROCESSOR)]
    return lines or [platform.processor(), platform.machine()]


def _read(folder, key):
    """The value of a key, or None if the folder has no whole file of it."""
    path = _path(folder, key)
    try:
        with open(path, "rb") as file:
            content = file.read() if is_mine(file.fileno()) else b""
    except FileNotFoundError:
        return None
    value = content[DIGEST:]
    if content[:DIGEST] != digest(key, value):
        return None
    with contextlib.suppress(OSError):  # it has been removed, or cannot be written
        os.utime(path)
    return pickle.loads(value)


def _write(folder, key, value):
    """Writes the value of a key in one step, and removes files that were not used for long."""
    value, written = pickle.dumps(value), None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            written = Path(file.name)
            file.write(digest(key, value) + value)
        os.replace(written, _path(folder, key))
    except OSError as error:
        with contextlib.suppress(OSError):
            written and written.unlink(missing_ok=True)
        warnings.warn(
            f"{folder}: an executable is not kept ({error}); free some space, or set "
            f"--compilation_cache to another folder",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)


def _path(folder, key):
    return folder / _sha256(key.encode()).hex()


def _sha256(data):
    return hashlib.sha256(data).digest()
