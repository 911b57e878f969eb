"""Client models by name, one family per file."""

from graphfl_jax.models import mlp, resnet

MODELS = {"mlp": mlp.mlp, "resnet18": resnet.resnet18}
