"""FedAH: each client mixes its own head with the server's, by a learned share of each number.

Zhou, He, Zhai, Gao, Chen, Qin, Zhang, Guo. FedAH: Aggregated Head for Personalized Federated
Learning. 2024. https://arxiv.org/abs/2412.01295

With the body b and the head h of the server, client i has a head h_i and shares W_i in [0, 1],
one for each number of the head. Products * are elementwise:

    m_i  = h_i + (h - h_i) * W_i
    W_i <- clip(W_i - eta dF_i(b, m_i)/dm_i * (h - h_i), 0, 1)      K_h times, with m_i anew
    h_i <- K_h steps of SGD on F_i(b, .), from m_i
    b_i  = K_c - K_h steps of SGD on F_i(., h_i), from b
    (b, h) <- sum_i n_i (b_i, h_i) / sum_i n_i

P predicts with b and the mixed head m_i after K_h steps of W_i, as the authors evaluate, and
before h_i or b_i is trained. G is (b, h), and L is (b_i, h_i).

Departures:
  * Fixed numbers of steps on batches drawn with replacement. The authors' code passes once over
    the examples for each of W_i, h_i and b_i, so by default K_h is half of K_c, rounded down.
    The steps of W_i are not counted in K_c.
  * In every round, the authors mix the heads of all clients. Here only the cohort changes its
    W_i and h_i, and the steps of W_i for P are not kept.
  * A client starts with the first head that it receives, and with W_i = 1.
  * Each client has its own W_i, as in the authors' code; FL-bench, another public
    implementation, has one W for all clients.
"""

from typing import Annotated

from graphfl_jax import parts
from graphfl_jax.algorithms.fedala import mixing
from graphfl_jax.algorithms.fedrep import head_steps_of, train_parts
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import ClientOptimizer

NEEDS = Needs(head=True)


@facts(needs=NEEDS)
def fedah(
    model: ClientModel,
    *,
    client_optimizer: ClientOptimizer,
    local_steps: int,
    batch_size: int | None,
    fedah_head_steps: Annotated[
        int,
        Integer(
            "Local steps K_h that train the head, after as many steps that train its shares; "
            "the other steps then train the body. -1: half of local_steps.",
            low=-1,
        ),
    ] = -1,
    fedah_eta: Annotated[
        Array, Real("Learning rate eta of the shares of the server's head; 0 keeps them at 1.")
    ] = 1.0,
) -> Algorithm:
    """Builds FedAH. Server state, message and upload are a model.

    The memory of a client is a `fedala.OwnPart`, with the head as its part.

    Args:
      model: of all clients.
      client_optimizer: its state starts anew for the head and for the body.
      local_steps: K_c, steps of head and body together.
      batch_size: examples in a step; None takes all.
      fedah_head_steps: K_h; 0 trains the body only.
      fedah_eta: eta, of plain projected gradient steps.

    Raises:
      ValueError: K_h is larger than K_c.
    """
    head_steps = head_steps_of("fedah_head_steps", fedah_head_steps, local_steps)
    train = train_parts(
        model,
        client_optimizer,
        steps={"head": head_steps, "body": local_steps - head_steps},
        batch_size=batch_size,
    )
    algorithm = mixing(
        model,
        parts.head,
        train,
        steps=head_steps,
        batch_size=batch_size,
        rate=fedah_eta,
    )
    return algorithm.replacing(needs=NEEDS)
