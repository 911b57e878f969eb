"""Optimisers by name. Their keyword arguments are floats, and may be traced."""

import optax


def sgd(*, lr) -> optax.GradientTransformation:
    """Plain gradient descent."""
    return optax.sgd(lr)


def momentum(*, lr, momentum, weight_decay, clip) -> optax.GradientTransformation:
    """Heavy ball with coupled weight decay, after clipping the gradient's global norm."""
    return optax.chain(
        optax.clip_by_global_norm(clip),
        optax.add_decayed_weights(weight_decay),
        optax.sgd(lr, momentum),
    )


def adam(*, lr) -> optax.GradientTransformation:
    """Adam with its usual decay rates."""
    return optax.adam(lr)


OPTIMIZERS = {"sgd": sgd, "momentum": momentum, "adam": adam}
