"""``python -m experiments.soak`` is ``graphfl soak``."""

from graphfl_jax.commands.soak import start

if __name__ == "__main__":
    start()
