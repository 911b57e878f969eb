"""FedRep: clients first fit their own heads to the shared body, and then train the body.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized
Federated Learning. ICML 2021. https://arxiv.org/abs/2102.07078

    h_i <- K_h steps of SGD on F_i(b, .), from the last h_i
    b_i  = K_c - K_h steps of SGD on F_i(., h_i), from b
    b   <- sum_i n_i b_i / sum_i n_i

G and P are the server's body b with the client's own head. The authors' code passes ten times
over the examples for the head and then once for the body. So by default K_h is 10/11 of K_c,
rounded down.

Departures: a fixed number of local steps, not epochs. Bodies are weighted by the numbers of
examples, as in the authors' code; the paper has equal weights. Heads start as each client draws
them. A client that was never sampled is scored with its first head.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.fedper import shared_body
from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.settings import Integer, Optimizer
from graphfl_jax.trainers import sgd_trainer


def fedrep(
    model: ClientModel,
    *,
    client_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer("client", meaning="Learning rate of the clients."),
    ],
    local_steps: int,
    batch_size: int | None,
    fedrep_head_steps: Annotated[
        int,
        Integer(
            "First local steps K_h, which train the head; the others train the body. "
            "-1 takes 10/11 of local_steps.",
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
    if fedrep_head_steps > local_steps:
        raise ValueError(
            f"algorithm.fedrep_head_steps={fedrep_head_steps} is more than "
            f"local_steps={local_steps}; set --config.algorithm.fedrep_head_steps="
            f"{local_steps} or less"
        )
    head_steps = 10 * local_steps // 11 if fedrep_head_steps < 0 else fedrep_head_steps
    steps = {"head": head_steps, "body": local_steps - head_steps}

    def local(body, head, data, key):
        params, losses = {"body": body, "head": head}, []
        for part, key_part in zip(steps, jax.random.split(key), strict=True):
            if not steps[part]:
                continue

            def of_part(own, batch, key, params=params, part=part):
                return model.objective(params | {part: own}, batch, key)

            train = sgd_trainer(client_optimizer, steps=steps[part], batch_size=batch_size)
            own, metrics = train(of_part, params[part], data.train, key_part)
            params = params | {part: own}
            losses.append(metrics["loss"] * steps[part])
        loss = jnp.sum(jnp.stack(losses)) / local_steps
        return params["head"], params["body"], {"loss": loss}

    return shared_body(model, local)
