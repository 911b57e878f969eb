"""What clients compute of the features of their examples: means of classes, and neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from graphfl_jax.algorithms.feddistill import feddistill
from graphfl_jax.algorithms.fedproto import ClassMeans, fedproto
from graphfl_jax.algorithms.knnper import Neighbours, features, knnper
from graphfl_jax.core import ClientData, ClientModel
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION

KEY = jax.random.key(3)
# One feature, b x, and the logits (1.5, b x). A client predicts with 2 b in place of b.
DOUBLING = ClientModel(
    init=lambda key: {"body": jnp.ones((1, 1)), "head": jnp.array([1.5])},
    body=lambda b, x: x @ b,
    head=lambda first, own: jnp.concatenate([jnp.full_like(own, first[0]), own], axis=1),
    task=CLASSIFICATION,
    recalibrate=lambda params, examples: params | {"body": 2 * params["body"]},
)
PARAMS = DOUBLING.init(KEY)
# The last row is padding.
EXAMPLES = Examples(
    jnp.array([[1.0], [3.0], [-1.0], [9.0]]), jnp.array([1, 1, 0, 0], jnp.int32), jnp.int32(3)
)
NONE = ClassMeans(jnp.zeros((2, 2)), jnp.zeros(2, jnp.int32))


def unchanged(objective, params, examples, key):
    """A local trainer that does nothing."""
    return params, {}


def uploaded(algorithm):
    _, means, _ = algorithm.client.local(NONE, PARAMS, ClientData(EXAMPLES), KEY)
    np.testing.assert_array_equal(means.count, [1, 2])
    return means.mean


def test_prototypes_are_of_the_features_that_a_client_predicts_with():
    """The features are 2, 6 and -2, of which the first two are of class 1."""
    means = uploaded(fedproto((DOUBLING,), unchanged, inputs=(1,), classes=2))
    np.testing.assert_allclose(means, [[-2.0], [4.0]])


def test_feddistill_sends_probabilities_of_the_model_that_a_client_predicts_with():
    """The logits are (1.5, 2), (1.5, 6) and (1.5, -2)."""
    means = uploaded(feddistill((DOUBLING,), unchanged, num_clients=2, classes=2))
    rows = softmax([[1.5, 2.0], [1.5, 6.0], [1.5, -2.0]], axis=1)
    np.testing.assert_allclose(means, [rows[2], (rows[0] + rows[1]) / 2], rtol=1e-5)


@pytest.mark.parametrize("first, weight", [(1.5, 0.0), (2.5, 1.0)])
def test_lambda_is_chosen_with_the_model_that_a_client_predicts_with(first, weight):
    """The neighbours, which are the examples themselves, are always right.

    For x = 1, the model has the logits (first, 2) and is right if first < 2; then lambda is 0.
    """
    settings = Neighbours(number=1, choices=1, weight=1.0, scale=1.0)
    algorithm = knnper(DOUBLING, unchanged, neighbours=settings)
    message = PARAMS | {"head": jnp.array([first])}
    found = algorithm.client.personalize(message, (), ClientData(EXAMPLES, EXAMPLES), KEY)
    np.testing.assert_allclose(found.extra.weight, weight)
    # What is stored is recalibrated once, where it is used.
    np.testing.assert_array_equal(found.params["body"], PARAMS["body"])


def test_features_of_examples_that_are_computed_in_parts_keep_their_order(monkeypatch):
    """Ten examples in parts of four: the last part is not full."""
    monkeypatch.setattr("graphfl_jax.algorithms.knnper.BATCH", 4)
    x = jnp.arange(10.0)[:, None]
    found = features(DOUBLING, PARAMS, Examples(x, jnp.zeros(10, jnp.int32), jnp.int32(10)))
    np.testing.assert_array_equal(found, x)
