"""``python -m experiments.robustness`` is ``graphfl robustness``."""

from graphfl_jax.commands.robustness import start

if __name__ == "__main__":
    start()
