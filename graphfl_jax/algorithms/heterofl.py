"""HeteroFL: one architecture at several widths, where narrow models are parts of the widest.

Diao, Ding, Tarokh. HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients. ICLR 2021. https://arxiv.org/abs/2010.01264

The server holds the widest model w. In each of its tensors, a narrower model is the slice of
the first elements along each axis. Client i trains its slice, and every element e becomes the
mean over the clients that hold it:

    w_i = K_c steps of SGD on F_i, from w[slice of i]
    w_e <- sum_{i holds e} n_i w_ie / sum_{i holds e} n_i

An element that no client of the cohort holds stays. G and P are the client's slice of w.

Which elements belong together is decided by their place alone. So a layer after a flattening
fits only if the flattening keeps the elements of a channel together, as in the networks of this
package; and outputs, which all clients have, must be as many in all widths.

Departures:
  * Clients are weighted by their numbers of examples; in the paper, equally.
  * Without the paper's scaler, which divides the activations of a narrow model in training by
    its share of the channels. The models are used as they are.
  * Without the paper's masked loss, in which a client ignores the classes that it does not
    have.
  * Batch normalisation computes its statistics on each client's own examples before it
    predicts; the paper computes those of all clients once after training.
  * A client keeps its width for the whole run, as the paper's fixed assignment.
"""

import jax
import jax.numpy as jnp

from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, ClientModel, Params, Server
from graphfl_jax.trainers import Train


def heterofl(
    models: tuple[ClientModel, ...], train: Train, *, unseen: tuple[ClientModel, ...] = ()
) -> Algorithm:
    """Builds HeteroFL. The state of the server is the widest model, a message is a slice of it.

    Args:
      models: of each width, in any order.
      train: trains a slice.
      unseen: of the widths that only new clients have.

    Raises:
      ValueError: none of `models` has all others as slices.
    """
    every = (*models, *unseen)
    shapes = [jax.eval_shape(model.init, jax.random.key(0)) for model in every]
    widest = _widest(shapes, len(models))

    def slice_of(w, shapes):
        return jax.tree.map(lambda leaf, narrow: leaf[_first(narrow.shape)], w, shapes)

    def aggregate(w, cohorts, uploads, key):
        def element_means(leaf, *parts):
            total, weight = jnp.zeros_like(leaf), jnp.zeros_like(leaf)
            for cohort, part in zip(cohorts, parts, strict=True):
                place = _first(part.shape[1:])
                total = total.at[place].add(jnp.tensordot(cohort.weights, part, axes=1))
                weight = weight.at[place].add(jnp.sum(cohort.weights))
            return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), leaf)

        return jax.tree.map(element_means, w, *uploads)

    server = Server(
        init=lambda key, graph: models[widest].init(key),
        download=lambda w, group, i: slice_of(w, shapes[group]),
        aggregate=aggregate,
    )
    clients = tuple(fedavg(model, train).client for model in every)
    return Algorithm(server, clients, averages=True)


def _first(shape):
    """The slice of the first elements along each axis."""
    return tuple(slice(size) for size in shape)


def _widest(shapes: list[Params], trained: int) -> int:
    """The number of the model of which all others are slices.

    Args:
      shapes: of the parameters of each model.
      trained: number of the first models, those that clients train with.

    Raises:
      ValueError: there is none.
    """
    for number, widest in enumerate(shapes[:trained]):
        if all(_is_slice(narrow, widest) for narrow in shapes):
            return number
    raise ValueError(
        "algorithm.name='heterofl' needs one architecture at several widths, and no "
        "architecture of this federation has all others as slices of its parameters; choose "
        "architectures that differ in width only, or set --config.algorithm.name=fedproto"
    )


def _is_slice(narrow, widest):
    if jax.tree.structure(narrow) != jax.tree.structure(widest):
        return False
    return all(
        len(a.shape) == len(b.shape)
        and all(m <= n for m, n in zip(a.shape, b.shape, strict=True))
        for a, b in zip(jax.tree.leaves(narrow), jax.tree.leaves(widest), strict=True)
    )
