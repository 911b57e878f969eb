"""A method that is written as users write theirs passes the checks of all methods."""

import pytest

from graphfl_jax import register, testing
from tests.core.own_methods import METHODS


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_a_user_passes_the_checks_of_all_methods(name):
    register.algorithm(name, METHODS[name])
    testing.check_algorithm(name)
