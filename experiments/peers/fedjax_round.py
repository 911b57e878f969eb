"""Times rounds of FedAvg in FedJAX 0.0.17; see measured.py for the works and the line.

Install it in a separate environment, with Python 3.11:

    pip install fedjax==0.0.17 jax==0.10.2 dm-haiku==0.0.17

So it has the same JAX as this product. FedJAX calls ``jax.tree_map``, which JAX has removed in
0.6, so the script gives it back. With ``jax==0.5.3 dm-haiku==0.0.14 optax==0.2.4``, which needs
no such change, w1 takes 237 instead of 317 MiB.

Differences: FedJAX computes clients one after the other, and a step is a call; this is its
default. The data are random numbers. A client shuffles its examples anew for each pass over
them. The last batch of the pass of w2 has 52 images. In w3, a batch of 64 has more than six
passes over the client's 10 examples, so a step has as many examples as in graphfl_jax. All
examples are in memory, in an array of each client.
"""

import fedjax
import haiku as hk
import jax
import measured
import numpy as np

jax.tree_map = jax.tree.map


def perceptron(batch):
    return hk.nets.MLP([16, 16, 6])(batch["x"])


def lenet(batch):
    features = [hk.Conv2D(6, 5, padding="SAME"), jax.nn.relu, hk.MaxPool(2, 2, "VALID")]
    features += [hk.Conv2D(16, 5, padding="VALID"), jax.nn.relu, hk.MaxPool(2, 2, "VALID")]
    head = [hk.Flatten(), hk.Linear(120), jax.nn.relu, hk.Linear(84), jax.nn.relu]
    return hk.Sequential([*features, *head, hk.Linear(10)])(batch["x"])


def squares(batch, predictions):
    """The mean squared error of each example."""
    return ((predictions - batch["y"]) ** 2).mean(axis=-1)


def entropy(batch, predictions):
    """The cross-entropy of each example."""
    return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], predictions)


def examples_of_w1(rng, count):
    x, y = rng.standard_normal((2, count, 6), np.float32)
    return {"x": x, "y": y}


def examples_of_w2(rng, count):
    x = rng.standard_normal((count, 28, 28, 1), np.float32)
    return {"x": x, "y": rng.integers(10, size=count)}


WORKS = {  # network, loss and examples of a client
    "w1": (perceptron, squares, examples_of_w1),
    "w2": (lenet, entropy, examples_of_w2),
    "w3": (perceptron, squares, examples_of_w1),
}


def main():
    rounds = measured.Rounds(measured.parser().parse_args())
    work, rng = rounds.work, np.random.default_rng(0)
    network, loss, examples = WORKS[rounds.name]
    data = {f"{i:06}": examples(rng, work.examples) for i in range(work.clients)}
    model = fedjax.create_model_from_haiku(hk.transform(network), examples(rng, 1), loss)
    batches = fedjax.ShuffleRepeatBatchHParams(
        measured.BATCH, num_epochs=None, num_steps=work.steps
    )
    if rounds.name == "w2":
        batches = fedjax.ShuffleRepeatBatchHParams(measured.BATCH, num_epochs=1)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(measured.RATE),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=batches,
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(data), work.cohort, seed=0
    )
    rounds.ready()
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def play_round():
        nonlocal state
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    rounds.play(play_round)
    rounds.show("fedjax", sum(leaf.size for leaf in jax.tree.leaves(state.params)))


if __name__ == "__main__":
    main()
