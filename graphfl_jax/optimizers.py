"""Optimisers by name. Their keyword arguments are floats, and may be traced.

Whoever takes a step passes ``value``, of an objective whose least value is 0: some ask for it.
"""

import jax
import optax


def sgd(*, lr) -> optax.GradientTransformation:
    """Plain gradient descent."""
    return optax.sgd(lr)


def polyak_sgd(*, lr) -> optax.GradientTransformation:
    """Gradient descent that steps by lr or by Polyak's value / ||gradient||^2, the lesser.

    A direction of curvature c that dominates the value gets a step of 1 / (2 c), half of
    Newton's, so that an overshoot cannot feed itself; a rate that is small enough is left
    alone. Loizou, Vaswani, Laradji, Lacoste-Julien. Stochastic Polyak Step-size
    for SGD. AISTATS 2021. https://arxiv.org/abs/2002.10542
    """
    return optax.polyak_sgd(max_learning_rate=lr)


def momentum(*, lr, momentum, weight_decay, clip) -> optax.GradientTransformation:
    """Heavy ball with coupled weight decay, after clipping the gradient's global norm."""
    return optax.chain(
        optax.clip_by_global_norm(clip),
        optax.add_decayed_weights(weight_decay),
        optax.sgd(lr, momentum),
    )


def adam(*, lr) -> optax.GradientTransformation:
    """Adam with its usual decay rates."""
    optimizer = optax.adam(lr)

    def update(gradient, memory, params=None):
        # Optax raises its decay rates to an integer, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(gradient, memory, params)

    return optax.GradientTransformation(optimizer.init, update)


OPTIMIZERS = {"sgd": sgd, "polyak_sgd": polyak_sgd, "momentum": momentum, "adam": adam}
