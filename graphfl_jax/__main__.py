"""``graphfl COMMAND``, or ``python -m graphfl_jax COMMAND``: see `graphfl_jax.commands`."""

from graphfl_jax.commands.common import interrupts

if __name__ == "__main__":
    interrupts.install()  # before the imports of a command, which take seconds

import importlib
import sys

from graphfl_jax.commands import COMMANDS


def main() -> None:
    """Starts the command that the first word names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        print(
            f"error: command {name!r} is unknown; choose from {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.argv[:2] = [f"graphfl {name}"]
    importlib.import_module(f"graphfl_jax.commands.{name}").start()


if __name__ == "__main__":
    main()
