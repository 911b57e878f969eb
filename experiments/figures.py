"""``python -m experiments.figures`` is ``graphfl figures``."""

from graphfl_jax.commands.figures import start

if __name__ == "__main__":
    start()
