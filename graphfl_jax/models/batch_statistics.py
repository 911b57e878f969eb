"""Client models with batch normalisation, whose statistics are never trained."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from graphfl_jax.architecture import Architecture
from graphfl_jax.core import Array, ClientModel, Params, Task

RECALIBRATION_EXAMPLES = 256  # largest number of a client's examples for its statistics


def batch_normalised(
    body: nn.Module,
    head: nn.Module,
    *,
    init: Callable[[Array], Params],
    task: Task,
    architecture: Architecture | None = None,
) -> ClientModel:
    """A client model whose body normalises by batches.

    Training normalises by the statistics of each batch and keeps no running averages, so that
    a model is a function of its parameters alone. Before a client predicts, it computes the
    statistics from up to RECALIBRATION_EXAMPLES of its own training examples in one pass
    (`recalibrate`) and stores them in ``params["body"]["statistics"]``. The statistics are thus
    personal, and they always match the parameters, even after these are averaged or generated.

    Args:
      body: (images [B, H, W, C], count []) -> features [B, F], with `images.BatchNorm`.
      head: features -> outputs [B, O].
      init: key -> parameters.
      task: of the model.
      architecture: the graph of its layers.
    """

    def features(params, x, count):
        variables = {"params": params, "statistics": params.get("statistics", {})}
        return body.apply(variables, x, count)

    def apply_body(params, x):
        return features(params, x, jnp.int32(x.shape[0]))

    def apply_head(params, x):
        return head.apply({"params": params}, x)

    def train_forward(params, batch, key):
        count = jnp.maximum(batch.count, 1)  # statistics of 0 rows are undefined
        return apply_head(params["head"], features(params["body"], batch.x, count))

    def recalibrate(params, examples):
        size = min(RECALIBRATION_EXAMPLES, examples.size)
        # Spread over all examples, because these may be sorted by class.
        spread = jnp.arange(size) * jnp.maximum(examples.count, size) // size
        images, real = examples.rows(spread).x, jnp.minimum(examples.count, size)
        variables = {"params": params["body"]}
        _, statistics = body.apply(variables, images, real, mutable=["statistics"])
        return params | {"body": params["body"] | statistics}

    return ClientModel(
        init=init,
        body=apply_body,
        head=apply_head,
        task=task,
        train_forward=train_forward,
        recalibrate=recalibrate,
        at_once=1,
        architecture=architecture,
    )
