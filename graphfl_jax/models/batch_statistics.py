"""Client models with batch normalisation, whose statistics are never trained."""

import flax.linen as nn
import jax.numpy as jnp

from graphfl_jax.architecture import Architecture
from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.layers import dense, init_parts

RECALIBRATION_EXAMPLES = 256  # largest number of a client's examples for its statistics


def model_with_batch_norm(
    body: nn.Module,
    *,
    inputs: tuple[int, ...],
    features: int,
    outputs: int,
    task: Task,
    architecture: Architecture | None = None,
) -> ClientModel:
    """A client model whose body normalises by batches, and whose head is a dense layer.

    Training normalises by the statistics of each batch and keeps no running averages, so that
    a model is a function of its parameters alone. Before a client predicts, it computes the
    statistics from up to RECALIBRATION_EXAMPLES of its own training examples in one pass
    (`recalibrate`) and stores them in ``params["body"]["statistics"]``. The statistics are thus
    personal, and they always match the parameters, even after these are averaged or generated.

    Args:
      body: (images [B, H, W, C], count []) -> features [B, F], with `images.BatchNorm`.
      inputs: (H, W, C).
      features: F.
    """
    head = dense(outputs, features)

    def init(key):
        image = jnp.zeros((1, *inputs), jnp.uint8)
        return init_parts(key, body, head, image, jnp.int32(1), features=features)

    def features_of(params, x, count):
        variables = {"params": params, "statistics": params.get("statistics", {})}
        return body.apply(variables, x, count)

    def apply_body(params, x):
        return features_of(params, x, jnp.int32(x.shape[0]))

    def apply_head(params, x):
        return head.apply({"params": params}, x)

    def train_forward(params, batch, key):
        count = jnp.maximum(batch.count, 1)  # statistics of 0 rows are undefined
        return apply_head(params["head"], features_of(params["body"], batch.x, count))

    def recalibrate(params, examples):
        images, count = spread_rows(examples, RECALIBRATION_EXAMPLES)
        variables = {"params": params["body"]}
        _, statistics = body.apply(variables, images, count, mutable=["statistics"])
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


def spread_rows(examples, most):
    """The inputs of at most so many examples, and how many of them are real.

    They are spread over all examples, because these may be sorted by class.
    """
    size = min(most, examples.size)
    rows = jnp.arange(size) * jnp.maximum(examples.count, size) // size
    return examples.rows(rows).x, jnp.minimum(examples.count, size)
