"""FedRep: clients first fit their own heads to the shared body, and then train the body.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized
Federated Learning. ICML 2021. https://arxiv.org/abs/2102.07078

    h_i <- K_h steps of SGD on F_i(b, .), from the last h_i
    b_i  = K_c - K_h steps of SGD on F_i(., h_i), from b
    b   <- sum_i n_i b_i / sum_i n_i

G and P are the server's body b with the client's own head. By default K_h is half of K_c,
rounded down, as in `fedah`.

Departures: a fixed number of local steps, not epochs. The authors' code passes ten times over
the examples for the head and then once for the body: that is K_h = 10/11 K_c, which leaves a
body of few local steps nearly untrained. Bodies are weighted by the numbers of
examples, as in the authors' code; the paper has equal weights. Heads start as each client draws
them. A client that was never sampled is scored with its first head.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.fedper import NEEDS, shared_body
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, ClientModel, Metrics, Params
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.settings import Integer
from graphfl_jax.trainers import ClientOptimizer, sgd_trainer


@facts(needs=NEEDS)
def fedrep(
    model: ClientModel,
    *,
    client_optimizer: ClientOptimizer,
    local_steps: int,
    batch_size: int | None,
    fedrep_head_steps: Annotated[
        int,
        Integer(
            "First local steps K_h, which train the head; the others train the body. -1: "
            "half of local_steps.",
            low=-1,
        ),
    ] = -1,
) -> Algorithm:
    """Builds FedRep. Server state, message and upload are a body; the memory is a head.

    Args:
      model: of all clients.
      client_optimizer: its state starts anew for the head and for the body.
      local_steps: K_c, steps of head and body together.
      batch_size: examples in a step; None takes all.
      fedrep_head_steps: K_h; 0 trains the body only, `local_steps` the head only.

    Raises:
      ValueError: K_h is larger than K_c.
    """
    head_steps = head_steps_of("fedrep_head_steps", fedrep_head_steps, local_steps)
    train = train_parts(
        model,
        client_optimizer,
        steps={"head": head_steps, "body": local_steps - head_steps},
        batch_size=batch_size,
    )

    def local(body, head, data, key):
        params, metrics = train({"body": body, "head": head}, data.train, key)
        return params["head"], params["body"], metrics

    return shared_body(model, local)


def head_steps_of(field: str, head_steps: int, local_steps: int) -> int:
    """The number of local steps that train the head.

    Args:
      field: the setting in the section ``algorithm``.
      head_steps: its value; -1 takes half of all, rounded down.
      local_steps: of head and body together.

    Raises:
      ValueError: `head_steps` is more than all.
    """
    if head_steps > local_steps:
        raise ValueError(
            f"algorithm.{field}={head_steps} is more than local_steps={local_steps}; set "
            f"--config.algorithm.{field}={local_steps} or less"
        )
    return local_steps // 2 if head_steps < 0 else head_steps


def train_parts(
    model: ClientModel,
    optimizer: optax.GradientTransformation,
    *,
    steps: dict[str, int],
    batch_size: int | None,
) -> Callable[[Params, Examples | Windows, Array], tuple[Params, Metrics]]:
    """Builds a trainer of the parts of a model, one after the other.

    Args:
      model: of the client.
      optimizer: its state starts anew for each part.
      steps: of "head" and of "body", in the order of training. The other part stays.
      batch_size: examples in a step; None takes all.

    Returns:
      (params, examples, key) -> the trained parameters, and {"loss": mean over the steps}.
    """

    def train(params, examples, key):
        losses = []
        for part, key_part in zip(steps, jax.random.split(key), strict=True):
            if not steps[part]:
                continue

            def of_part(trained, batch, key, params=params, part=part):
                return model.objective(params | {part: trained}, batch, key)

            train_part = sgd_trainer(optimizer, steps=steps[part], batch_size=batch_size)
            trained, metrics = train_part(of_part, params[part], examples, key_part)
            params = params | {part: trained}
            losses.append(metrics["loss"] * steps[part])
        return params, {"loss": jnp.sum(jnp.stack(losses)) / sum(steps.values())}

    return train
