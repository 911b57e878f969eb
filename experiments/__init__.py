"""The commands of ``graphfl``, as modules: ``python -m experiments.run`` and others."""

import signal
import sys

if sys.argv[0] == "-m":  # Python has not found the command yet, whose imports take seconds
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    from graphfl_jax.commands.common import interrupts

    interrupts.install()
