"""Client models by name, one family per file."""

from graphfl_jax.models import mlp

MODELS = {"mlp": mlp.mlp}
