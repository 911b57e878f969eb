"""Methods of other papers, written as users write them, pass the checks of all methods."""

import pytest

from graphfl_jax import register, testing
from tests.core.own_methods import METHODS


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "gossip" else pytest.mark.release)
        for name in METHODS
    ],
)
def test_methods_of_other_papers_pass_the_checks_of_all_methods(name):
    register.algorithm(name, METHODS[name])
    testing.check_algorithm(name)
