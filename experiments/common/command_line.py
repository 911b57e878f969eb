"""The command line of all entries: flags, errors in one line, progress."""

import itertools
import os
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
from rich.table import Table
from rich.text import Text

from graphfl_jax.configs.fields import changed, fields_of, parsed, values_of
from graphfl_jax.data.files import cache_folder

config_flags.DEFINE_config_file(
    "config", None, "Configuration file; --config.FIELD=VALUE sets a field, --help lists them."
)
flags.DEFINE_string("data_root", None, "Folder of data files; overrides $GRAPHFL_DATA.")
flags.DEFINE_string(
    "compilation_cache",
    None,
    "Folder of compiled programs, by default in the user's cache folder; empty keeps none.",
)
flags.DEFINE_integer(
    "cores",
    None,
    "Cores over which many runs are split, by default all that this process may use. "
    "Accelerators are always all used.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "debug",
    False,
    "Show the trace of an error; experiments.run then plays client by client without jit.",
)
FLAGS = flags.FLAGS
OVERRIDES: dict[str, str] = {}  # values of --config.FIELD=VALUE, by field


def launch(
    main: Callable[[], int], *, keep_compiled: bool = True, many_runs: bool = False
) -> None:
    """Runs `main` after parsing flags, and exits with the status that it returns.

    A flag, a field or a file that does not fit ends in one line on stderr and status 2.

    Args:
      keep_compiled: whether compiled programs are kept for later processes.
      many_runs: whether `main` splits runs over devices; then each core is one.
    """
    warnings.formatwarning = lambda message, *where, **line: f"warning: {message}\n"

    def guarded(argv):
        logging.set_verbosity(logging.WARNING)  # Orbax logs every step of a save
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
    config = parsed(file_configuration(), OVERRIDES)
    if FLAGS.data_root is not None:
        config = changed(config, {"data.root": FLAGS.data_root})
    return config


def file_configuration() -> ConfigDict:
    """The configuration of the file, without ``--config.FIELD=VALUE``."""
    if FLAGS.config is None:
        raise ValueError("no configuration; add --config=configs/tpt48.py or another file")
    return FLAGS.config


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
    """Recent units per second, or per minute if they are slow."""

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
    """Progress, rate and remaining time on stderr; silent if stderr is not a terminal."""
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
    """Makes JAX keep compiled programs in a folder, unless its own settings name one.

    A later process runs this code, so only the user may write into the folder.
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
            f"compiled programs are not kept: {error}; set --compilation_cache to another "
            f"folder, or leave it empty",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _make_cores_devices(cores: int | None) -> None:
    """Makes each core a device, unless XLA's own flags set the number of devices.

    XLA uses several cores for a large product, but one for a program of many small products.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    allowed = getattr(
        os, "sched_getaffinity", lambda process: range(os.cpu_count())
    )  # not on macOS
    jax.config.update("jax_num_cpu_devices", cores or len(allowed(0)))


def _parse(argv):
    argv, overrides = _take_overrides(argv)
    OVERRIDES.clear()
    OVERRIDES.update(overrides)
    asked = [word for word in argv if word.lstrip("-") in ("help", "helpshort", "h")]
    argv = [word for word in argv if word not in asked]
    try:
        rest = FLAGS(argv)
        getattr(FLAGS.config, "rounds", None)  # a file that cannot be read fails at first use
        if asked:
            _show_help()
    except OSError as error:
        why = str(error).splitlines()[-1].strip()
        refuse(f"{why}; name a configuration file, such as configs/tpt48.py")
    except AttributeError as error:
        if "get_config" not in str(error):
            raise
        refuse(f"the configuration file has no get_config: {error}")
    except (flags.Error, ImportError, SyntaxError, TypeError, ValueError) as error:
        refuse(str(error))
    if len(rest) > 1:
        refuse(f"{rest[1]!r} is not a flag; flags begin with --")
    return rest


def _take_overrides(argv):
    """Splits --config.FIELD=VALUE, or --config.FIELD VALUE, off the other words."""
    rest, overrides, words = [], {}, iter(argv)
    for word in words:
        field, given, value = word.removeprefix("--config.").partition("=")
        if not word.startswith("--config."):
            rest.append(word)
        elif given:
            overrides[field] = value
        else:
            overrides[field] = next(words, "")
    return rest, overrides


def _show_help():
    """Prints the flags of the entry, and the fields of the configuration."""
    app.usage(shorthelp=True, writeto_stdout=True)
    if FLAGS.config is not None:
        config = parsed(FLAGS.config, OVERRIDES)
        Console().print(field_table(config))
    else:
        print("\nAdd --config=FILE to list the fields of a configuration.")
    sys.exit(0)


def field_table(config: ConfigDict) -> Table:
    """The fields of a configuration, with their values and meanings."""
    values, defaults = values_of(config)
    table = Table(title="--config.FIELD=VALUE", show_edge=False)
    for column in ("field", "value", "possible values", "meaning"):
        table.add_column(column, overflow="fold")
    for name, field in fields_of(values, defaults).items():
        shown = field.setting.values
        table.add_row(name, str(values[name]), shown, field.setting.meaning)
    return table
