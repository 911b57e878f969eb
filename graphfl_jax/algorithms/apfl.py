"""APFL: each client mixes a personal model with the server's, by a learned share.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020.
https://arxiv.org/abs/2003.13461

Client i has a model v_i and a share alpha_i in [0, 1]. K_c times, on one batch and with all of
the right-hand sides from before the step, it takes

    m_i      = alpha_i v_i + (1 - alpha_i) w_i                    w_i from w, in every round
    w_i     <- w_i - eta grad F_i(w_i)
    v_i     <- v_i - eta alpha_i grad F_i(m_i)
    alpha_i <- clip(alpha_i - eta_alpha <grad F_i(m_i), v_i - w_i>, 0, 1)
    w       <- sum_i n_i w_i / sum_i n_i                          on the server

P is alpha_i v_i + (1 - alpha_i) w, with the w that the client receives. G is w, and L is w_i.

Departures: eta_alpha is a further rate; the paper has eta. v_i starts as the first model of
the client, so at that time P is G. w weights clients by their numbers of examples. The
loss that a round reports and that an optimiser sees is F_i(w_i) + F_i(m_i). In the authors'
code, alpha_i takes a step in the first local step of a round alone. Public implementations take
the gradient at v_i, mix the outputs, or replace v_i by the mixture after every round.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Predictor
from graphfl_jax.optimizers import projected_sgd
from graphfl_jax.settings import Real
from graphfl_jax.trainers import ClientOptimizer, sgd_trainer


def apfl(
    model: ClientModel,
    *,
    client_optimizer: ClientOptimizer,
    local_steps: int,
    batch_size: int | None,
    apfl_share: Annotated[
        Array, Real("First share alpha of a client's personal model in APFL.", high=1.0)
    ] = 0.5,
    apfl_lr: Annotated[
        Array, Real("Learning rate of APFL's shares alpha; 0 keeps them as they start.")
    ] = 0.1,
) -> Algorithm:
    """Builds APFL. Server state, message and upload are a model.

    The memory of a client is its model v_i and its share alpha_i, by the names "v" and "alpha".

    Args:
      model: of all clients.
      client_optimizer: of w_i, and another one of v_i; their states start anew in every round.
      local_steps: K_c.
      batch_size: examples in a step; None takes all.
      apfl_share: alpha_i before the first round of client i.
      apfl_lr: eta_alpha, of plain projected gradient steps.
    """
    optimizers = {"w": client_optimizer, "v": client_optimizer, "alpha": projected_sgd(apfl_lr)}
    train = sgd_trainer(
        optax.partition(optimizers, {name: name for name in optimizers}),
        steps=local_steps,
        batch_size=batch_size,
    )

    def both(held, batch, key):
        # The gradient of the second loss by v_i and alpha_i follows from the chain rule.
        mixed = mix(held, jax.lax.stop_gradient(held["w"]))
        return model.objective(held["w"], batch, key) + model.objective(mixed, batch, key)

    def local(w, memory, data, key):
        held, metrics = train(both, memory | {"w": w}, data.train, key)
        return {name: held[name] for name in memory}, held["w"], metrics

    client = Client(
        model,
        local,
        enroll=lambda w, key: {"v": w, "alpha": jnp.float32(apfl_share)},
        personalize=lambda w, memory, data, key: Predictor(mix(memory, w)),
    )
    return Algorithm(averaging_server(model), (client,), averages=True)


def mix(memory: dict, w: Params) -> Params:
    """The mixture of a client's personal model with another one, such as the received one."""
    share = memory["alpha"]
    return jax.tree.map(lambda v, w: share * v + (1.0 - share) * w, memory["v"], w)
