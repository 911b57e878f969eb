"""A generated federation of any size: clients in the plane, of which near ones are alike.

Client i is at a place p_i, uniform in the unit square. Its examples are

    y = tanh(x A_i) + e,    A_i = 2^-1/2 C + 8^-1/2 sum_k cos(2 pi f_k p_i + b_k) B_k

with 6 inputs x, uniform in [-1, 1), and 6 targets. The noise e is uniform with the standard
deviation 0.1, so the mean squared error of the best prediction is 0.01. The matrix C [6, 6] is
common to all clients. The sum is over 8 waves: frequencies f_k [2] are standard normal in waves
per unit of length, and phases b_k are uniform. The numbers of C and of the B_k [6, 6] are
normal with the variance 1/2. So every number of x A_i has the variance 1 over clients and
examples, half of it common.

Two clients are related if their distance is at most (mean_degree / (pi (N - 1)))^1/2: a random
geometric graph (Gilbert, Random plane networks, 1961).

Nothing of a client but its place is stored. Its examples are computed when they are read: x
and e are a function of the seed, the client, the example and the feature, see
`bits.random_bits`. So they depend neither on other clients nor on their number. Targets may
differ in the last bits between processors, as the cosine and the tangent of NumPy do. Places,
and C, f_k, b_k and B_k, are drawn by two Philox generators of NumPy.
"""

import functools
import math
from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import relations
from graphfl_jax.data.bits import random_bits
from graphfl_jax.data.common_settings import GeneratorSeed, ValFraction
from graphfl_jax.data.federation import Federation, Positions, federate_on_demand
from graphfl_jax.data.on_demand import Names, OnDemand
from graphfl_jax.examples import Examples
from graphfl_jax.memory import check_memory
from graphfl_jax.settings import Integer, Real

INPUTS = OUTPUTS = 6
WAVES = 8
NOISE = 0.1  # its standard deviation
MOST_RELATED = 1000.0  # mean number of relations of a client


def geometric(
    *,
    clients: Annotated[int, Integer("Clients.")] = 1_000_000,
    train_examples: Annotated[int, Integer("Training examples of each client.")] = 10,
    test_examples: Annotated[int, Integer("Test examples of each client.")] = 5,
    val_fraction: ValFraction = 0.0,
    mean_degree: Annotated[
        float,
        Real(
            "Mean number of relations of a client far from the border; 0 is no relations.",
            high=MOST_RELATED,
        ),
    ] = 5.0,
    generator_seed: GeneratorSeed = 0,
) -> Federation:
    """Generates a regression for clients in the unit square, of which near ones are alike.

    The docstring of this file has the formulas. Test examples depend neither on
    `train_examples` nor on `val_fraction`, which makes the first training examples those of
    validation.

    Returns:
      N clients, x [6] and y [6] float32, with their positions.

    Raises:
      ValueError: `val_fraction` leaves no example to train or to validate, or it cannot fit
        into memory.
    """
    validation = round(val_fraction * (train_examples + test_examples))
    if val_fraction and not 0 < validation < train_examples:
        raise ValueError(
            f"data.val_fraction={val_fraction} makes {validation} of {train_examples} training "
            f"examples those of validation; set it so that some are and some are not, or to 0"
        )
    _check_memory(clients, mean_degree, train_examples, test_examples)
    places = _generator(generator_seed, 0).random((clients, 2))
    sizes = {"test": test_examples, "val": validation, "train": train_examples - validation}
    return federate_on_demand(
        Names("client", range(clients)),
        parts=_parts(generator_seed, places, sizes),
        graph=_join_near(places, mean_degree),
        task="regression",
        outputs=OUTPUTS,
        name="geometric",
        source="generated",
        positions=Positions(("x", "y"), places),
    )


def _check_memory(clients, mean_degree, train_examples, test_examples):
    """Refuses what cannot fit: places and relations, or the examples of one client."""
    related = clients * round(16 + 30 * mean_degree)
    check_memory(f"data.clients={clients} with data.mean_degree={mean_degree:g}", related)
    for field, size in (("train", train_examples), ("test", test_examples)):
        check_memory(f"data.{field}_examples={size}", size * INPUTS * 24)


def _parts(seed, places, sizes):
    """The examples of each part, which has that many; the first ones are of the first part."""
    waves, parts, first = _draw_waves(_generator(seed, 1)), {}, 0
    for part, size in sizes.items():
        formula = f"geometric 1, seed {seed}, from example {first} on"
        x, y = (
            OnDemand(
                functools.partial(_examples, seed, places, waves, first, size, leaf),
                (len(places), size, features),
                np.float32,
                f"{formula}, {leaf}",
            )
            for leaf, features in (("x", INPUTS), ("y", OUTPUTS))
        )
        if size:
            parts[part] = Examples(x, y, np.full(len(places), size, np.int32))
        first += size
    return parts


class _Waves(NamedTuple):
    """What decides the matrices of all clients."""

    common: np.ndarray  # [INPUTS, OUTPUTS] float32
    frequencies: np.ndarray  # [K, 2]
    phases: np.ndarray  # [K]
    matrices: np.ndarray  # [K, INPUTS, OUTPUTS] float32


def _generator(seed, stream):
    return np.random.Generator(np.random.Philox([seed, stream]))


def _draw_waves(rng):
    frequencies, phases = rng.standard_normal((WAVES, 2)), rng.uniform(0, 2 * np.pi, WAVES)
    matrices = rng.standard_normal((WAVES + 1, INPUTS, OUTPUTS)) / np.sqrt(2)
    common, *matrices = matrices.astype(np.float32)
    return _Waves(common, frequencies, phases, np.stack(matrices))


def _examples(seed, places, waves, first, count, name, clients):
    """Inputs "x" or targets "y" of some clients [k]: [k, count, 6] float32.

    All is element by element, since the bits of a product of matrices would depend on how many
    clients are read.

    Args:
      first: number of the first of the `count` examples.
    """
    numbers = np.arange(INPUTS * first, INPUTS * (first + count))
    of_client = random_bits(random_bits(seed), clients)
    bits = random_bits(of_client[:, None], numbers).reshape(len(clients), count, INPUTS)
    x = _uniform(bits >> np.uint64(40))
    if name == "x":
        return x
    matrices = _matrices(places[clients], waves)
    y = np.zeros_like(x)
    for feature in range(INPUTS):
        y += x[:, :, feature, None] * matrices[:, None, feature]
    np.tanh(y, out=y)
    y += np.float32(NOISE * math.sqrt(3)) * _uniform(bits & np.uint64(2**24 - 1))
    return y


def _matrices(places, waves):
    """The matrices A_i of clients at `places` [k, 2]: [k, INPUTS, OUTPUTS] float32."""
    common, *of_waves = waves
    matrices = np.empty((len(places), INPUTS, OUTPUTS), np.float32)
    matrices[:] = np.float32(math.sqrt(1 / 2)) * common
    for frequency, phase, matrix in zip(*of_waves, strict=True):
        turns = places[:, 0] * frequency[0] + places[:, 1] * frequency[1]
        weight = math.sqrt(1 / WAVES) * np.cos(2 * np.pi * turns + phase)  # [k]
        matrices += weight.astype(np.float32)[:, None, None] * matrix
    return matrices


def _uniform(bits):
    """Numbers of 24 bits, as float32 in [-1, 1)."""
    return bits.astype(np.float32) * np.float32(2**-23) - np.float32(1)


def _join_near(places, mean_degree):
    """The relations between clients at `places` [N, 2] within the radius for `mean_degree`."""
    if mean_degree == 0 or len(places) == 1:
        return relations.from_edges(len(places), ())
    from scipy.spatial import cKDTree  # a tenth of a second, which other data sets do not need

    radius = math.sqrt(mean_degree / (math.pi * (len(places) - 1)))
    near = cKDTree(places, balanced_tree=False, compact_nodes=False)
    pairs = near.query_pairs(radius, output_type="ndarray").astype(np.int32)
    del near  # a million clients have 100 MB in it, and as many in the pairs
    return relations.from_edges(len(places), pairs)
