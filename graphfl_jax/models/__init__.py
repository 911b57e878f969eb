"""Client models by name, one family per file."""

from graphfl_jax.models import gru, mlp, resnet

MODELS = {
    "gru": gru.gru,
    "gru_sampled": gru.gru_sampled,
    "mlp": mlp.mlp,
    "resnet18": resnet.resnet18,
}
