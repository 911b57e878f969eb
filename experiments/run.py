"""``python -m experiments.run`` is ``graphfl run``."""

from graphfl_jax.commands.run import start

if __name__ == "__main__":
    start()
