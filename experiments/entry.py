"""What every entry does alike: read flags, run, and say in one line what does not fit."""

import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

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
        if FLAGS.data_root is not None:
            FLAGS.config.data.root = FLAGS.data_root
        try:
            sys.exit(main())
        except (OSError, ValueError) as error:
            if FLAGS.debug:
                raise
            refuse(str(error))

    app.run(guarded, flags_parser=_parse)


def refuse(message: str) -> NoReturn:
    """Prints an error as one line and exits with status 2."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _parse(argv):
    try:
        rest = FLAGS(argv)
    except (flags.IllegalFlagValueError, TypeError) as error:
        refuse(f"{error}; configs/base.py shows every field with a value of its type")
    except (AttributeError, KeyError) as error:
        field = str(error.args[0]).strip("'\"")
        refuse(f"the configuration has no field {field!r}; configs/base.py lists all fields")
    except FileNotFoundError as error:
        refuse(f"{error}; name a configuration file, such as configs/tpt48.py")
    except (flags.Error, ImportError, OSError, SyntaxError, ValueError) as error:
        refuse(str(error))
    if len(rest) > 1:
        refuse(f"{rest[1]!r} is no flag; flags begin with --")
    if FLAGS.config is None:
        refuse("no configuration; add --config=configs/tpt48.py or another file")
    return rest
