"""``python -m experiments.theory`` is ``graphfl theory``."""

from graphfl_jax.commands.theory import start

if __name__ == "__main__":
    start()
