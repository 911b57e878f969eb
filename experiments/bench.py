"""``python -m experiments.bench`` is ``graphfl bench``."""

from graphfl_jax.commands.bench import start

if __name__ == "__main__":
    start()
