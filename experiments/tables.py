"""``python -m experiments.tables`` is ``graphfl tables``."""

from graphfl_jax.commands.tables import start

if __name__ == "__main__":
    start()
