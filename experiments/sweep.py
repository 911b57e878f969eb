"""``python -m experiments.sweep`` is ``graphfl sweep``."""

from graphfl_jax.commands.sweep import start

if __name__ == "__main__":
    start()
