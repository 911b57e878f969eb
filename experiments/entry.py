"""What every entry does alike: read flags, run, and say in one line what does not fit."""

import re
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags
from rich import progress
from rich.console import Console
from rich.text import Text

config_flags.DEFINE_config_file(
    "config", None, "Configuration file; --config.FIELD=VALUE sets one of its fields."
)
flags.DEFINE_string("data_root", None, "Folder of data files; overrides $GRAPHFL_DATA.")
flags.DEFINE_bool("debug", False, "Show the trace of an error.")
FLAGS = flags.FLAGS


def launch(main: Callable[[], int]) -> None:
    """Runs `main` after parsing flags, and exits with the status that it returns.

    A flag, a field or a file that does not fit ends in one line on stderr and status 2.
    """
    warnings.formatwarning = lambda message, *where, **line: f"warning: {message}\n"

    def guarded(argv):
        logging.set_verbosity(logging.WARNING)  # Orbax tells every step of a save
        try:
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
    return f"the configuration has no field {name!r}{meant}; configs/base.py lists all fields"
