"""Declarations of settings that several data sets read."""

from typing import Annotated

from graphfl_jax.data.label_skew import PARTITIONS
from graphfl_jax.data.splits import TEST_FRACTION
from graphfl_jax.settings import Choice, Integer, Real, Text, Variant

DataPath = Annotated[
    str, Text("File to read; empty takes the official file in the data folder.")
]
GeneratorSeed = Annotated[int, Integer("Seed of generated or simulated data.", low=0)]
ValFraction = Annotated[
    float, Real("Share of each client's examples for validation.", high=1 - TEST_FRACTION)
]
ImageSize = Annotated[int, Integer("Width and height of images in pixels.", low=8)]
# A name in configurations; a loader gets what the factory of that name makes.
Partition = Annotated[
    str,
    Variant("How examples are divided among clients.", PARTITIONS, factories=PARTITIONS),
]
Cap = Annotated[
    int,
    Integer(
        "Largest number of examples of a client in each split, drawn at random; 0 is all. With "
        "data.test=own, of training and test examples together.",
        low=0,
        when=("data.partition",),
    ),
]


def forms(*names: str) -> Choice:
    """Declares `data.source` of a data set that exists in these forms; "auto" is added."""
    return Choice("Form of the data; auto takes the first available one.", ("auto", *names))
