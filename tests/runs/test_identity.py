"""The identity of a run: digests of its configuration, its data and its code."""

import functools
import json

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax import register
from graphfl_jax.algorithms import ALGORITHMS, Method
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.build import arrange
from graphfl_jax.configs import change
from graphfl_jax.runs import identity, single
from tests.runs.test_store import CONFIG, data, own_method


def test_arrays_have_the_split_and_what_a_configuration_adds():
    first = data()
    others = {
        "seed": data(seed=1),
        "test_fraction": data(test_fraction=0.3),
        "new clients": arrange(change(CONFIG, {"new_clients.fraction": 0.25}), first),
        "attackers": arrange(change(CONFIG, {"attack.name": "sign_flip"}), first),
        "relations": data(edges=[(0, 1)]),
    }
    digests = {
        name: identity.digest_of_arrays(federation) for name, federation in others.items()
    }
    assert len({identity.digest_of_arrays(first), *digests.values()}) == 1 + len(others)
    assert identity.digest_of_arrays(data()) == identity.digest_of_arrays(first)
    # The examples are the same, so their own digest is no protection.
    assert first.sha256 == others["seed"].sha256 == others["test_fraction"].sha256


def test_a_configuration_is_compared_without_what_is_free_on_resume():
    digest = identity.digest_of_config(CONFIG.to_dict())
    written = json.loads(json.dumps(CONFIG.to_dict()))
    assert identity.digest_of_config(written) == digest
    for changes, same in (({"rounds": 9}, True), ({"hparams.client_lr": 0.3}, False)):
        other = identity.digest_of_config(change(CONFIG, changes).to_dict())
        assert (other == digest) == same


def test_processes_compare_their_whole_configurations(monkeypatch):
    class Compared(Exception):
        pass

    def compare(values):
        raise Compared(values["configuration"])

    monkeypatch.setattr(single, "assert_same_on_all", compare)
    texts = []
    for changes in ({}, {"seed": 1}, {"rounds": 9}, {"hparams.client_lr": 0.3}):
        with pytest.raises(Compared) as raised:
            graphfl_jax.run(change(CONFIG, changes), data())
        texts.append(str(raised.value))
    assert len(set(texts)) == len(texts)


def test_functions_of_the_user_have_the_digests_of_their_files(tmp_path, monkeypatch):
    assert identity.digests_of_code()["callables"] == {}
    mine = own_method(tmp_path / "mine.py", 1)
    before = identity.digests_of_code(callables=[functools.partial(mine, 3)])["callables"]
    monkeypatch.setitem(ALGORITHMS, "mine", Method(mine))
    assert identity.digests_of_code()["callables"] == before
    assert list(before) == ["mine.py"]
    own_method(tmp_path / "mine.py", 2)
    after = identity.digests_of_code()["callables"]
    assert list(after) == ["mine.py"] and after != before


def test_a_file_that_is_edited_after_a_registration_keeps_its_digest(tmp_path):
    """The registered function is still that of the file before."""
    file, digests = tmp_path / "mine.py", []
    try:
        for number in (1, 2):
            mine = own_method(file, number)
            register.algorithm("mine", mine)
            digests.append(identity.digests_outside([mine])["mine.py"])
            file.write_text(file.read_text() + "# edited\n")
            assert identity.digests_outside([mine])["mine.py"] == digests[-1]
    finally:
        del ALGORITHMS["mine"], register.REGISTERED["algorithm", "mine"], register.FILES[file]
    assert digests[0] != digests[1]


def test_a_function_that_wraps_one_of_the_package_is_the_users():
    """The wrapper has the name and the module of the package's function."""

    @functools.wraps(fedavg)
    def wrapper(*args, **options):
        return fedavg(*args, **options)

    assert wrapper.__module__ == "graphfl_jax.algorithms.fedavg"
    for method in (
        wrapper,
        functools.partial(wrapper),
        functools.cache(wrapper),
        Own,
        Own(),
        Own().__call__,
    ):
        assert list(identity.digests_outside([method])) == ["test_identity.py"]
    assert identity.digests_outside([functools.cache(fedavg), np.add]) == {}


class Own:
    """A method that is a class with a call."""

    def __call__(self, model):
        return model


def test_functions_without_a_file_have_the_digests_of_their_instructions():
    def typed(text):
        names = {}
        exec(compile(text, "<prompt>", "exec"), names)
        return identity.digests_outside([names["mine"]])

    text = "def mine(x):\n    return (lambda y: y + 1)(x)\n"
    assert typed(text) == typed("\n\n" + text)  # only the lines differ
    assert typed(text) != typed(text.replace("+ 1", "+ 2"))
    for before, after in (("x, y=3", "x, y=4"), ("x, *, y=(3, abs)", "x, *, y=(3, len)")):
        texts = [text.replace("mine(x)", f"mine({inside})") for inside in (before, after)]
        assert typed(texts[0]) != typed(texts[1])
    address = text.replace("mine(x)", "mine(x, y=object())")
    assert typed(address) == typed(address)
    # These sets are equal, but their elements have another order, as strings in every process.
    sets = ["{0, 8}", "{8, 0}"]
    assert repr(frozenset((0, 8))) != repr(frozenset((8, 0)))
    first, second = (typed(text.replace("y + 1", f"y in {numbers}")) for numbers in sets)
    assert first == second != typed(text.replace("y + 1", "y in {0, 9}"))


@pytest.mark.parametrize(
    "first",
    [
        "def helper(x):\n    return x * 1\ndef mine(x):\n    return helper(x)\n",
        "class Net:\n    def __call__(self, x):\n        return x * 1\n"
        "def mine(x):\n    return Net()(x)\n",
        "def make(rate):\n    return lambda x: rate * x\nmine = make(1)\n",
        "rate = 1\ndef mine(x):\n    return [rate * y for y in x]\n",
        "import numpy as np\nrates = np.ones(2) * 1\ndef mine(x):\n    return rates * x\n",
        "def mine(x):\n    return x and mine(x - 1)\n"
        "def other():\n    return x * 1\nmine.next = other\n",
    ],
)
def test_functions_without_a_file_have_the_digests_of_what_they_use(first):
    def typed(text):
        names = {}
        exec(compile(text, "<prompt>", "exec"), names)
        return identity.digests_outside([names["mine"]])

    second = first.replace("* 1", "* 2").replace("make(1)", "make(2)").replace("= 1\n", "= 2\n")
    assert typed(first) == typed(first)
    assert (typed(first) == typed(second)) == ("other" in first)  # which mine does not use


def test_files_of_the_user_are_in_the_identity_by_their_content(tmp_path):
    file = tmp_path / "mine"
    config = change(CONFIG, {"model.name": "resnet18", "model.weights": str(file)})
    digests = set()
    for text in ("a", "b"):
        file.write_text(text)
        weights = identity.identity_of(config, data(), "arrays", {})["weights"]
        digests |= {weights, identity.digests_of_code(file)["config_file"]}
    assert len(digests) == 2
    assert "weights" not in identity.identity_of(CONFIG, data(), "arrays", {})
    assert identity.digests_of_code()["config_file"] is None
