"""Client models by name, one family per file."""

from graphfl_jax.models import architectures, cnn, gru, lstm, mlp, resnet

MODELS = {
    "architectures": architectures.architectures,
    "cnn": cnn.cnn,
    "conv3": cnn.conv3,
    "gru": gru.gru,
    "gru_sampled": gru.gru_sampled,
    "lenet": cnn.lenet,
    "lstm": lstm.lstm,
    "mlp": mlp.mlp,
    "resnet18": resnet.resnet18,
}
