"""Entries that are used from a checkout: ``python -m experiments.run`` and others."""

import sys

from experiments.common import interrupts

if sys.argv[0] == "-m":  # Python has not found the entry yet, whose imports take seconds
    interrupts.install()
