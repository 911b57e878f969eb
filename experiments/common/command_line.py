"""What every entry does alike: read flags, run, and say in one line what does not fit."""

import functools
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags
from rich import progress
from rich.console import Console
from rich.text import Text

from graphfl_jax.data.files import cache_folder

config_flags.DEFINE_config_file(
    "config", None, "Configuration file; --config.FIELD=VALUE sets one of its fields."
)
flags.DEFINE_string("data_root", None, "Folder of data files; overrides $GRAPHFL_DATA.")
flags.DEFINE_string(
    "compilation_cache",
    None,
    "Folder of compiled programs, by default in the user's cache folder; empty: keep none.",
)
flags.DEFINE_integer(
    "cores",
    None,
    "Cores over which entries of many runs split them, by default all that this process may "
    "use; accelerators, where there are some, are all used.",
    lower_bound=1,
)
flags.DEFINE_bool("debug", False, "Show the trace of an error.")
FLAGS = flags.FLAGS


def launch(
    main: Callable[[], int], *, keep_compiled: bool = True, many_runs: bool = False
) -> None:
    """Runs `main` after parsing flags, and exits with the status that it returns.

    A flag, a field or a file that does not fit ends in one line on stderr and status 2.

    Args:
      keep_compiled: whether programs are kept for later processes, and theirs used.
      many_runs: whether `main` splits runs over devices, of which each core is then one.
    """
    warnings.formatwarning = lambda message, *where, **line: f"warning: {message}\n"

    def guarded(argv):
        logging.set_verbosity(logging.WARNING)  # Orbax tells every step of a save
        try:
            if keep_compiled:
                _keep_compiled(FLAGS.compilation_cache)
            if many_runs:
                _make_cores_devices(FLAGS.cores)
            sys.exit(main())
        except (OSError, ValueError) as error:
            if FLAGS.debug:
                raise
            refuse(str(error))

    app.run(guarded, flags_parser=_parse)


def configuration() -> ConfigDict:
    """The configuration that the flags describe."""
    if FLAGS.config is None:
        raise ValueError("no configuration; add --config=configs/tpt48.py or another file")
    if FLAGS.data_root is not None:
        FLAGS.config.data.root = FLAGS.data_root
    return FLAGS.config


def kind_of(config: ConfigDict, field: str) -> type:
    """The type of a field's values, by its dotted name.

    Raises:
      ValueError: there is no such field.
    """
    try:
        return type(functools.reduce(lambda part, name: part[name], field.split("."), config))
    except (KeyError, TypeError):
        raise ValueError(_no_field(field)) from None


def parsed(config: ConfigDict, field: str, text: str) -> bool | int | float | str:
    """A value of a field, from a word of the command line.

    Raises:
      ValueError: there is no such field, or the word is no value of its kind.
    """
    kind = kind_of(config, field)
    words = {"true": True, "false": False} if kind is bool else {}
    try:
        if kind not in (bool, int, float, str):
            raise ValueError
        return words[text.lower()] if words else kind(text)
    except (KeyError, ValueError):
        raise ValueError(
            f"{field}={text} is not of its kind, {kind.__name__}; configs/base.py shows one"
        ) from None


def fresh_folder(name: str) -> Path:
    """The first of runs/NAME, runs/NAME-2, ... that does not exist."""
    numbered = (f"{name}-{i}" if i > 1 else name for i in itertools.count(1))
    return next(path for path in map(Path("runs").joinpath, numbered) if not path.exists())


def refuse(message: str) -> NoReturn:
    """Prints an error as one line and exits with status 2."""
    complain(message)
    sys.exit(2)


def complain(message: str) -> None:
    """Prints an error as one line."""
    print("error:", " ".join(message.split()), file=sys.stderr, flush=True)


class Rate(progress.ProgressColumn):
    """Units per second of late, or per minute where they are slow."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task):
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("compiling")
        if speed < 1:
            return Text(f"{60 * speed:,.1f} {self.unit}/min")
        return Text(f"{speed:,.0f} {self.unit}/s")


def progress_bar(unit: str = "rounds", *, shown: bool = True) -> progress.Progress:
    """Progress, rate and remaining time on stderr; silent where that is no terminal."""
    console = Console(stderr=True)
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(unit),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not (shown and console.is_terminal),
    )


def _keep_compiled(folder: str | None) -> None:
    """Lets JAX keep compiled programs in a folder, unless its own settings name one.

    Such a program is code that a later process runs, so that nobody else may write there.
    """
    if folder == "" or (folder is None and jax.config.jax_compilation_cache_dir):
        return
    path = Path(folder).expanduser() if folder else cache_folder() / "compiled"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)  # fails where the folder is another user's
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} cannot be written")
    except OSError as error:
        warnings.warn(
            f"no compiled program is kept: {error}; set --compilation_cache to a folder of "
            f"yours, or to nothing",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _make_cores_devices(cores: int | None) -> None:
    """Makes each core a device, unless XLA's own flags say how many there are.

    XLA uses several cores for a large product, and one for a program of many small ones.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    allowed = getattr(
        os, "sched_getaffinity", lambda process: range(os.cpu_count())
    )  # not on macOS
    jax.config.update("jax_num_cpu_devices", cores or len(allowed(0)))


def _parse(argv):
    try:
        rest = FLAGS(argv)
        getattr(FLAGS.config, "rounds", None)  # a file that cannot be read fails at first use
    except (flags.IllegalFlagValueError, TypeError) as error:
        refuse(f"{error}; configs/base.py shows every field with a value of its type")
    except (AttributeError, KeyError) as error:
        refuse(_unknown_name(str(error), argv))
    except OSError as error:
        why = str(error).splitlines()[-1].strip()
        refuse(f"{why}; name a configuration file, such as configs/tpt48.py")
    except (flags.Error, ImportError, SyntaxError, ValueError) as error:
        refuse(str(error))
    if len(rest) > 1:
        refuse(f"{rest[1]!r} is no flag; flags begin with --")
    return rest


def _unknown_name(error, argv):
    """What to say of a name that ml_collections, or a file's get_config, did not find."""
    if "get_config" in error:
        return f"the configuration file is none: {error}"
    name = re.search(r"lookup: ([\w.]+)|'(\w+)|$", error)
    name = name[1] or name[2] or error
    if any(word.endswith(f":{name}") for word in argv):
        return f"{name!r} is no method of the configuration file; METHODS in it lists them"
    close = re.search(r'Did you mean "(\w+)"', error)
    meant = f", perhaps {close[1]!r}" if close else ""
    return _no_field(name, meant)


def _no_field(name, meant=""):
    return f"the configuration has no field {name!r}{meant}; configs/base.py lists all fields"
