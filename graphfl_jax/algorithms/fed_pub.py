"""FED-PUB: mixtures of models with similar outputs on random inputs, and masks of clients.

Baek, Jeong, Jin, Yoon, Hwang. Personalized Subgraph Federated Learning. ICML 2023.
https://arxiv.org/abs/2206.10206

Client i predicts with v_i * m_i, elementwise, where m_i is a mask that it keeps, at first 1.

    u_i  = sum_j a_ij v_j,    a_ij = softmax_j(tau cos(h_i, h_j))
    v_i, m_i <- K_c steps on F_i(v * m) + lambda_1 ||m||_1 + lambda_2 ||v - u_i||^2,
                from u_i and m_i
    h_i  = the outputs of v_i * m_i for PROXIES random inputs, which never change

A client uploads v_i and h_i. Steps of m_i are those of a proximal gradient:

    m_i <- sign(n) max(|n| - eta lambda_1, 0),    n = m_i - eta dF_i / dm

With tau = 0, shares are equal, and with a large tau each client is alone. With eta = 0 and
lambda_2 = 0, the first case is FedAvg with equal weights.

P is v_i * m_i after local training, L the same after one more round, and G is u_i * m_i.

Departures:
  * The paper's models are graph networks, its inputs are a random graph, and h_i is the mean
    of the hidden features of its nodes. Here, h_i are all outputs for random inputs of the
    shape of an example: bytes for images, symbols for models that read symbols, and else
    normal numbers. They are drawn from a fixed key, not from that of the run, and never sent.
  * Masks are of all parameters, in the authors' code of matrices. Proximal steps set values to
    0; the authors' code takes those below lambda_1 as 0 in predictions.
  * In the authors' code, neither of the two terms has a gradient, and the distance to u_i is
    not squared.
  * Mixtures are over the last uploads of all clients that have ever sent one, not over those of
    a round. A client that never did receives their mean with equal shares.
  * A new client starts from the mean of the known clients' models, as in `fedamp`.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms.cfl import cosines
from graphfl_jax.algorithms.fedamp import mixing_server
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Predictor
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.settings import Real
from graphfl_jax.trainers import ClientOptimizer, sgd_trainer

PROXIES = 100  # random inputs, as many as the nodes of one of the paper's random graphs
BATCHES = 5  # in which a model reads them


class Upload(NamedTuple):
    """What a client sends."""

    model: Params  # v_i
    outputs: Array  # h_i, [PROXIES * O]


def fed_pub(
    model: ClientModel,
    *,
    client_optimizer: ClientOptimizer,
    local_steps: int,
    batch_size: int | None,
    num_clients: int,
    outputs: int,
    fed_pub_tau: Annotated[
        Array, Real("Factor tau of FED-PUB's cosines; 0 mixes all models equally.")
    ] = 10.0,
    fed_pub_lambda: Annotated[
        Array, Real("Weight lambda_2 of FED-PUB's squared distance to the mixture.")
    ] = 0.001,
    fed_pub_sparsity: Annotated[
        Array, Real("Weight lambda_1 of the absolute values of FED-PUB's masks.")
    ] = 0.001,
    fed_pub_lr: Annotated[
        Array, Real("Learning rate eta of FED-PUB's masks; 0 keeps them at 1.")
    ] = 0.1,
) -> Algorithm:
    """Builds FED-PUB. A message is (u_i,), and an upload an `Upload`.

    The memory of a client is its v_i and its mask m_i, by the names "model" and "mask".

    Args:
      model: of all clients.
      client_optimizer: of v_i; its state starts anew in every round.
      local_steps: K_c.
      batch_size: examples in a step; None takes all.
      num_clients: N.
      outputs: O, of the model.
      fed_pub_tau: tau.
      fed_pub_lambda: lambda_2.
      fed_pub_sparsity: lambda_1.
      fed_pub_lr: eta.
    """
    mask_optimizer = sparse_sgd(fed_pub_lr, fed_pub_sparsity)
    optimizers = {"model": client_optimizer, "mask": mask_optimizer}
    train = sgd_trainer(
        optax.partition(optimizers, {name: name for name in optimizers}),
        steps=local_steps,
        batch_size=batch_size,
    )

    def mixing(server):
        sent = server.sizes > 0
        sent = sent | ~jnp.any(sent)
        similar = fed_pub_tau * cosines(server.uploads.outputs, server.uploads.outputs)
        return jax.nn.softmax(jnp.where(sent[None], similar, -jnp.inf), axis=1)

    def as_sent(v, mask, examples):
        ready = model.recalibrate(masked(v, mask), examples)
        batches = proxies(model, examples)
        return Upload(v, jax.lax.map(lambda x: model.apply(ready, x), batches).reshape(-1))

    def local(message, memory, data, key):
        (u,) = message

        def objective(held, batch, key):
            near = fed_pub_lambda * tree.sq_dist(held["model"], u)
            return model.objective(masked(**held), batch, key) + near

        held, metrics = train(objective, memory | {"model": u}, data.train, key)
        return held, as_sent(held["model"], held["mask"], data.train), metrics

    server = mixing_server(
        "fed_pub",
        num_clients,
        # Some compilations of JAX 0.10 for CPUs make NaN of the cosines of constants.
        lambda key: Upload(
            model.init(key), jax.lax.optimization_barrier(jnp.zeros(PROXIES * outputs))
        ),
        mixing,
        sent=lambda uploads: (uploads.model,),
        remembers=("sizes",),
    )
    client = Client(
        model,
        local,
        enroll=lambda message, key: {
            "model": message[0],
            "mask": jax.tree.map(jnp.ones_like, message[0]),
        },
        # Messages and uploads begin with a model.
        deploy=lambda sent, memory, data: Predictor(masked(sent[0], memory["mask"])),
        untrained=lambda message, memory, data: as_sent(*message, memory["mask"], data.train),
        personalize=lambda message, memory, data, key: Predictor(masked(**memory)),
    )
    return Algorithm(server, (client,))


def sparse_sgd(lr: Array, weight: Array) -> optax.GradientTransformation:
    """Proximal gradient steps with a weight of the absolute values, as of m_i above."""

    def to_sparse(gradient, mask):
        """The way to the mask after a step."""
        stepped = mask - lr * gradient
        return jnp.sign(stepped) * jnp.maximum(jnp.abs(stepped) - lr * weight, 0.0) - mask

    return optax.stateless(lambda gradients, masks: jax.tree.map(to_sparse, gradients, masks))


def masked(model: Params, mask: Params) -> Params:
    """The parameters with which a client predicts."""
    return jax.tree.map(jnp.multiply, model, mask)


def proxies(model: ClientModel, examples: Examples | Windows) -> Array:
    """The random inputs [BATCHES, B, *features], of the type of a client's inputs."""
    first = examples.rows(jnp.zeros(1, jnp.int32)).x
    key, shape = jax.random.key(0), (BATCHES, PROXIES // BATCHES, *first.shape[1:])
    if model.symbols:
        return jax.random.randint(key, shape, 0, model.symbols).astype(first.dtype)
    if first.dtype == jnp.uint8:
        return jax.random.bits(key, shape, jnp.uint8)
    return jax.random.normal(key, shape, first.dtype)
