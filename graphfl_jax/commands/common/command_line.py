"""What all commands have on the command line: flags, errors in one line, progress."""

import contextlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import jax
from absl import app, flags, logging
from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from graphfl_jax.commands.common.configuration import (
    OVERRIDES,
    configuration,
    refuse_configuration,
)
from graphfl_jax.commands.common.help_text import flags_of, name_of, refuse, show_help
from graphfl_jax.commands.common.interrupts import how_to_continue, note_end
from graphfl_jax.commands.common.text_tables import folded, styled, visible
from graphfl_jax.configs.fields import all_fields
from graphfl_jax.data.files import cache_folder
from graphfl_jax.runs import program_cache
from graphfl_jax.runs.disk import WriteError, why_not_writable
from graphfl_jax.runs.store import NewFolders
from graphfl_jax.settings import perhaps

flags.DEFINE_string(
    "compilation_cache",
    None,
    "Folder in which compiled programs are kept, by default in the user's cache folder; if "
    "empty, none are kept.",
)
flags.DEFINE_integer(
    "cores",
    None,
    "CPU cores that share the clients of a round, or many runs; by default all that this "
    "process may use. All accelerators are used in any case.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "debug",
    False,
    "Show the traceback of an error. With run, compute clients one by one without jit.",
)
FLAGS = flags.FLAGS
HELP = {f"{dashes}{word}" for dashes in ("-", "--") for word in ("help", "helpshort", "h")}
BROKEN_PIPE = 128 + 13  # the exit status of a program that SIGPIPE ends
# What ends a command for which the memory is too small.
TOO_LARGE = (
    "the memory of this machine or its devices is too small; choose smaller sizes, such as "
    "--config.client_chunk=1, --config.clients_per_eval=1 or a smaller --config.batch_size; "
)


def launch(
    main: Callable[[], int],
    *,
    keep_compiled: bool | Callable[[], bool] = True,
    configured: bool = True,
) -> None:
    """Runs `main` after parsing flags, and exits with the status that it returns.

    An OSError or ValueError, as raised for an invalid flag, field or file, is printed as one
    line on stderr, and the status is 2. With --debug, its traceback is printed before. If a
    file could not be written, the line ends with the command that continues.

    Args:
      main: the command; returns the exit status.
      keep_compiled: whether compiled programs are kept for later processes; a function, if the
        flags decide it.
      configured: whether the command reads a configuration; if not, --config is refused.
    """
    warnings.formatwarning = lambda message, *where, **line: (
        f"{folded(f'warning: {visible(str(message))}', Console(stderr=True))}\n"
    )

    command = sys.modules[main.__module__]

    def guarded(argv):
        logging.set_verbosity(logging.WARNING)  # Orbax logs every step of a save
        try:
            if not configured:
                refuse_configuration(f"{name_of(command)} has no configuration")
            keep = keep_compiled() if callable(keep_compiled) else keep_compiled
            _prepare_jax(keep, configured)
            sys.exit(main())
        except BrokenPipeError:
            raise
        except (OSError, ValueError, AssertionError, MemoryError, RuntimeError) as error:
            if FLAGS.debug:
                traceback.print_exc()
            if not (line := _line_of(error)):
                raise
            refuse(line)

    try:
        app.run(guarded, flags_parser=lambda argv: parse(command, argv, configured=configured))
    except BrokenPipeError:  # as in `graphfl list fields | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except SystemExit as left:
        note_end(left.code or 0)
        raise


def refuse_unread(*names: str, where: str = "by this command") -> None:
    """Refuses flags that a command does not read.

    Raises:
      ValueError: one of them is set, and is not read `where`.
    """
    for name in names:
        if FLAGS[name].present:
            word = FLAGS[name].serialize().removeprefix("--")
            raise ValueError(f"{word} is not read {where}; leave it out")


def _line_of(error):
    """What is printed of an error that a user can correct; of others, an empty string."""
    if isinstance(error, OSError | ValueError):
        then = f"; {how_to_continue()}" if isinstance(error, WriteError) else ""
        return f"{error}{then}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return TOO_LARGE + how_to_continue()
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as missing:
        why = " ".join(str(missing).split()) or "there is no such device"
        return (
            f"JAX_PLATFORMS={jax.config.jax_platforms or ''} cannot be used ({why}); set it to "
            f"cpu, or leave it unset"
        )
    return ""


def compiled_folder() -> str | None:
    """The folder in which compiled programs are kept, or None."""
    folder = jax.config.jax_compilation_cache_dir
    kept = FLAGS.compilation_cache != "" and jax.config.jax_enable_compilation_cache
    return folder if kept and folder and "://" not in folder else None


def out_folder(name: str, known: Callable[[Path], None]) -> Path | NewFolders:
    """The folder of --out, or else a new one, runs/NAME.

    `known` is called with its path: of a new one when it is made.
    """
    if not FLAGS.out:
        return NewFolders(Path("runs", name), known=known)
    known(Path(FLAGS.out))
    return Path(FLAGS.out)


def check_new_file(flag: str, path: Path) -> None:
    """Checks that a file does not exist and can be written; makes nothing.

    Raises:
      ValueError: it exists, or cannot be written.
    """
    if path.exists():
        raise ValueError(f"{flag}={path} exists; remove it, or choose another --{flag}")
    folder = path.absolute().parent
    why = why_not_writable(folder) if folder.is_dir() else f"{folder} is no folder"
    if why:
        raise ValueError(f"{flag}={path} cannot be written ({why}); choose another --{flag}")


def new_file_of_flag(*suffixes: str, flag: str = "to") -> Path | None:
    """The file that a flag names to be written, if it is set.

    Raises:
      ValueError: its name has another suffix, or as `check_new_file`.
    """
    if FLAGS[flag].value is None:
        return None
    file = Path(FLAGS[flag].value)
    if file.suffix not in suffixes:
        names = " or ".join([", ".join(suffixes[:-1]), suffixes[-1]])
        raise ValueError(f"{flag}={file} has no known format; let it end with {names}")
    check_new_file(flag, file)
    return file


class Rate(progress.ProgressColumn):
    """Recent units per second, or per minute; the seconds that have passed before the first."""

    def __init__(self, unit: str):
        super().__init__(Column(no_wrap=True))
        self.unit = unit

    def render(self, task):
        if not task.completed:
            return Text(f"compiling and first {self.unit}, {task.elapsed or 0:.0f} s")
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        if speed < 1:
            return Text(f"{60 * speed:,.1f} {self.unit}/min")
        return Text(f"{speed:,.0f} {self.unit}/s")


class Note(progress.ProgressColumn):
    """The text ``note`` of a task, if it has one."""

    def render(self, task):
        return styled(task.fields.get("note", ""), "dim")


@contextlib.contextmanager
def progress_bar(unit: str = "rounds", *, shown: bool = True) -> Iterator[progress.Progress]:
    """Progress, rate and remaining time on stderr; nothing if stderr is not a terminal.

    The bar takes the place that the other columns leave. An error removes all of it.
    """
    console = Console(stderr=True)
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(None, table_column=Column(max_width=40)),
        progress.MofNCompleteColumn(),
        Rate(unit),
        progress.TimeRemainingColumn(),
        Note(Column(no_wrap=True)),
        console=console,
        disable=not (shown and console.is_terminal),
    ) as bar:
        try:
            yield bar
        except BaseException:
            bar.live.transient = True
            raise


def _prepare_jax(keep_compiled, configured):
    """Sets where compiled programs are kept, and the devices; starts none."""
    if keep_compiled:
        _keep_compiled(FLAGS.compilation_cache)
    elif configured:
        refuse_unread("compilation_cache")
    else:  # the folders of runs alone are read
        refuse_unread("compilation_cache", "cores", "data_root")
    _make_cores_devices(FLAGS.cores)


def _keep_compiled(folder: str | None) -> None:
    """Makes JAX keep compiled programs in a folder, unless JAX's own settings name one.

    Raises:
      ValueError: others may write into the folder that is given.
    """
    named = jax.config.jax_compilation_cache_dir
    if folder == "" or (folder is None and named):
        if named and Path(named).is_dir():  # JAX makes a missing one, and reads remote ones
            program_cache.check_private(Path(named))
        return
    path = Path(folder).expanduser() if folder else cache_folder() / "compiled"
    try:
        path = program_cache.make_private(path)
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} cannot be written")
    except (OSError, ValueError) as error:
        if folder and isinstance(error, ValueError):
            raise
        warnings.warn(
            f"compilation_cache={path}: compiled programs are not kept ({error}); set "
            f"--compilation_cache to another folder, or to nothing",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    program_cache.keep_in(path)


def _make_cores_devices(cores: int | None) -> None:
    """Makes each CPU core a device, unless XLA's own flags set the number of devices.

    XLA uses several cores for one large matrix product, but only one core for a program of many
    small products. With --distributed, the processes share the cores.

    Raises:
      ValueError: a number of cores is given with --distributed, which does not read it.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if "distributed" in FLAGS and FLAGS.distributed:
        if cores:
            raise ValueError(f"cores={cores} is not read with --distributed; leave it out")
        return
    # macOS has no sched_getaffinity.
    allowed = getattr(os, "sched_getaffinity", lambda process: range(os.cpu_count()))
    jax.config.update("jax_num_cpu_devices", cores or len(allowed(0)))


def parse(command: ModuleType, argv: list[str], *, configured: bool = True) -> list[str]:
    """Parses the flags, and keeps ``--config.FIELD=VALUE`` in `OVERRIDES`.

    One word may stand alone: the value of --run, if the command has this flag, or of --config.
    Any number of words may be values of --folders, if the command has this flag.
    Prints the help and exits, if it is asked for, and exits with status 2 if a flag does not
    fit. `configured` is as in `launch`.

    Args:
      command: the module of the command.
      argv: the words of the command line, the command first, which alone is returned.
    """
    FLAGS.set_gnu_getopt(True)  # flags may follow that word
    # Elsewhere help is a value of a flag or a name.
    asked = [word for word in argv if word in HELP or argv[1:] == [word] == ["help"]]
    argv = [word for word in argv if word not in asked]
    try:
        argv, overrides = _take_overrides(argv)
        OVERRIDES.clear()
        OVERRIDES.update(overrides)
        rest = FLAGS(argv)
        if "folders" in FLAGS:  # as in `graphfl report runs/mine runs/other`
            FLAGS.folders = [*FLAGS.folders, *rest[1:]]
            del rest[1:]
        alone = "run" if "run" in FLAGS else "config"
        if len(rest) == 2 and FLAGS[alone].value is None:  # as in `graphfl run tpt48`
            FLAGS[alone].value = rest.pop()
        if len(rest) > 1:
            raise ValueError(f"{rest[1]!r} is not a flag; flags begin with --")
        if asked:
            chosen = FLAGS.config is not None
            show_help(command, configuration() if chosen else None, configured=configured)
            sys.exit(0)
    except flags.UnrecognizedFlagError as error:
        refuse(_unknown_flag(error.flagname, command))
    except (flags.Error, ValueError) as error:
        refuse(_wrong_flag(str(error)))
    return rest


def _wrong_flag(error):
    """The error for a flag whose value is missing or not of its type, in our form."""
    if missing := re.fullmatch(r"Missing value for flag --?(\S+)", error):
        name = missing[1]
        return f"{name} has no value; set --{name} to {_expected(name)}"
    wrong = re.match(r"flag --(\w+)=(.*?): ", error, re.DOTALL)
    if wrong is None or (name := wrong[1]) not in FLAGS:
        return error
    try:
        FLAGS[name].parser.parse(wrong[2])
    except (TypeError, ValueError):
        return f"{name}={wrong[2]} is not {_expected(name)}; set --{name} to such a value"
    return error.removeprefix("flag --")


def _expected(name):
    """What a flag takes as its value."""
    flag = FLAGS[name]
    if values := getattr(flag.parser, "enum_values", None):
        return f"one of {', '.join(values)}"
    kinds = {"int": "an integer", "float": "a number", "bool": "true or false"}
    low = getattr(flag.parser, "lower_bound", None)
    least = "" if low is None else f" of at least {low}"
    return kinds.get(flag.flag_type(), "a value") + least


def _unknown_flag(name, command):
    """The error for a flag that a command does not have."""
    known = [flag.name for listed in flags_of(command).values() for flag in listed]
    near = perhaps(f"--{name}", [f"--{flag}" for flag in known])
    fields = {field for field, _ in all_fields()}
    if name in fields:
        near = f"; perhaps --config.{name} is meant, a field of the configuration"
    elif not near:
        near = perhaps(name, fields)
    return (
        f"--{name} is not a flag of {name_of(command)}{near}; --help lists the flags, and "
        f"fields are set by --config.FIELD=VALUE"
    )


def _take_overrides(argv):
    """Splits ``--config.FIELD=VALUE``, or ``--config.FIELD VALUE``, off the other words.

    Raises:
      ValueError: a field has no value.
    """
    rest, overrides, words = [], {}, iter(argv)
    for word in words:
        match = re.fullmatch(r"--?config\.([^=]*)(=?)(.*)", word, re.DOTALL)
        if match is None:
            rest.append(word)
            continue
        field, equals, value = match.groups()
        if not equals:
            value = next(words, None)
            if value is None or value.startswith("--"):
                raise ValueError(f"config.{field} has no value; add --config.{field}=VALUE")
        overrides[field] = value
    return rest, overrides
