"""Declarations of settings that several data sets read."""

from typing import Annotated

from graphfl_jax.data.partition import TEST_FRACTION
from graphfl_jax.settings import Choice, Integer, Real, Text

DataPath = Annotated[
    str, Text("File to read; empty takes the official file in the data folder.")
]
GeneratorSeed = Annotated[int, Integer("Seed of generated or simulated data.", low=0)]
ValFraction = Annotated[
    float, Real("Share of each client's examples for validation.", high=1 - TEST_FRACTION)
]


def forms(*names: str) -> Choice:
    """Declares `data.source` of a data set that exists in these forms; "auto" is added."""
    return Choice("Form of the data; auto takes the first available one.", ("auto", *names))
