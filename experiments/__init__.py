"""The commands of ``graphfl``, as modules: ``python -m experiments.run`` and others."""

import sys

from graphfl_jax.commands.common import interrupts

if sys.argv[0] == "-m":  # Python has not found the command yet, whose imports take seconds
    interrupts.install()
