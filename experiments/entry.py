"""What every entry does alike: read flags, run, and say in one line what does not fit."""

import sys
import warnings
from collections.abc import Callable

from absl import app, flags, logging
from ml_collections import config_flags

config_flags.DEFINE_config_file(
    "config", None, "Configuration file; --config.FIELD=VALUE sets one of its fields."
)
flags.DEFINE_string("data_root", None, "Folder of data files; overrides $GRAPHFL_DATA.")
flags.DEFINE_bool("debug", False, "Show the trace of an error.")
flags.mark_flag_as_required("config")
FLAGS = flags.FLAGS

# What a wrong flag raises, in absl, in ml_collections and in a configuration file.
FLAG_ERRORS = (
    flags.Error,
    AttributeError,
    ImportError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
)


def launch(main: Callable[[], int]) -> None:
    """Runs `main` after parsing flags, and exits with the status that it returns.

    A flag, a field or a file that does not fit ends in one line on stderr and status 2.
    """
    warnings.formatwarning = lambda message, *where, **line: f"warning: {message}\n"

    def parse(argv):
        try:
            rest = FLAGS(argv)
        except FLAG_ERRORS as error:
            refuse(error)
        if len(rest) > 1:
            refuse(ValueError(f"{rest[1]!r} is no flag; flags begin with --"))
        if FLAGS.data_root is not None:
            FLAGS.config.data.root = FLAGS.data_root
        return rest

    def guarded(argv):
        logging.set_verbosity(logging.WARNING)  # Orbax tells every step of a save
        try:
            sys.exit(main())
        except (OSError, ValueError) as error:
            if FLAGS.debug:
                raise
            refuse(error)

    app.run(guarded, flags_parser=parse)


def refuse(error: Exception) -> None:
    """Prints an error as one line and exits with status 2."""
    line = " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(2)
