"""The user's own data: arrays, files of them, relations found in them, and runs on them."""

import re
from pathlib import Path

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.configs import custom as configuration
from graphfl_jax.data import GRAPHS, federation, from_arrays, knn, partition, relations
from graphfl_jax.data.custom import custom
from tests.federations import SMALL

README = Path(__file__).parents[1] / "README.md"

# Ten is the first name, by string; rows are told apart by their first number.
CLIENT = np.array([9, 10, 9, 9, 2, 2, 10, 2, 9, 10])
X = np.stack([np.arange(10), CLIENT], axis=1)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
SPLIT = np.array(["train", "test", "test", "train", *["train", "test"] * 3])


def real(part, i):
    """The real rows of client i."""
    return part.x[i, : part.count[i]], part.y[i, : part.count[i]]


def test_examples_go_to_their_clients_who_are_in_sorted_order():
    for client, order in ((CLIENT, [2, 9, 10]), (CLIENT.astype(str), [10, 2, 9])):
        made = from_arrays(X, Y, client, test_fraction=0.4)
        assert made.clients == tuple(map(str, order))
        assert (made.task, made.outputs, made.source) == ("classification", 3, "own")
        for i, name in enumerate(order):
            parts = [real(part, i) for part in (made.data.train, *made.data.evals.values())]
            x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            assert (x[:, 1] == name).all()
            assert sorted(x[:, 0]) == np.flatnonzero(name == CLIENT).tolist()
            np.testing.assert_array_equal(y, Y[x[:, 0].astype(int)])


def test_random_split_is_the_one_of_other_data_sets():
    settings = {"seed": 3, "val_fraction": 0.3, "test_fraction": 0.3}
    made = from_arrays(X, Y, CLIENT, **settings)
    for i, name in enumerate((2, 9, 10)):
        rows = np.flatnonzero(name == CLIENT)
        split = partition.random_split(len(rows), i, **settings)
        for part, chosen in split.items():
            held = made.data.train if part == "train" else made.data.evals[part]
            np.testing.assert_array_equal(real(held, i)[0][:, 0], rows[chosen])


def test_given_split_is_followed_and_hashed():
    made = from_arrays(X, Y, CLIENT, split=SPLIT)
    for i, name in enumerate((2, 9, 10)):
        for part, word in ((made.data.train, "train"), (made.data.evals["test"], "test")):
            expected = np.flatnonzero((name == CLIENT) & (word == SPLIT))
            np.testing.assert_array_equal(real(part, i)[0][:, 0], expected)
    assert set(made.data.evals) == {"test"}
    assert from_arrays(X, Y, CLIENT, split=SPLIT, seed=1).sha256 == made.sha256
    other = SPLIT.copy()
    other[[0, 2]] = other[[2, 0]]
    assert from_arrays(X, Y, CLIENT, split=other).sha256 != made.sha256


def test_given_split_may_hold_validation_examples():
    split = SPLIT.copy()
    split[[3, 9, 4]] = "val"
    split[[1, 5, 6]] = "train", "train", "test"
    made = from_arrays(X, Y, CLIENT, split=split)
    assert list(made.data.evals["val"].x[:, 0, 0]) == [4, 3, 9]


def test_floats_are_targets_and_flattened():
    for shape, outputs in (((10,), 1), ((10, 2, 3), 6)):
        made = from_arrays(X, np.ones(shape), CLIENT, test_fraction=0.4)
        assert (made.task, made.outputs) == ("regression", outputs)
        assert made.data.train.y.shape[2:] == (outputs,)


def test_edges_call_clients_by_name():
    edges, weight = np.array([[10, 2], [9, 10]]), [2.0, 3.0]
    graph = from_arrays(X, Y, CLIENT, edges=edges, edge_weight=weight).data.graph
    np.testing.assert_array_equal(relations.dense(graph), [[0, 0, 2], [0, 0, 3], [2, 3, 0]])
    graph = from_arrays(
        X, Y, CLIENT.astype(str), edges=edges.astype(str), directed=True
    ).data.graph  # 10, 2, 9
    np.testing.assert_array_equal(relations.dense(graph), [[0, 0, 1], [1, 0, 0], [0, 0, 0]])
    for nobody in (None, [], np.zeros((0, 2))):
        assert len(from_arrays(X, Y, CLIENT, edges=nobody).data.graph.senders) == 0


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"x": X.astype(str)}, "x has type <U.*numbers"),
        ({"x": X * 1j}, "x has type complex128"),
        ({"x": X[:, :0]}, r"x has shape \(10, 0\).*not be empty"),
        ({"x": np.where(X == 4, np.nan, X)}, "client '2' has a NaN .* in x of example 0"),
        ({"x": 0.0}, r"y has shape \(10,\) and x has \(\)"),
        ({"y": Y[:7]}, r"y has shape \(7,\) and x has \(10, 2\)"),
        ({"y": Y.astype(str)}, "y has type <U.*integers for labels, floats for targets"),
        ({"y": Y[:, None]}, r"y has integers of shape \(10, 1\)"),
        ({"y": Y * 0}, "integers up to 0 .*two labels"),
        ({"y": Y * 1000}, "integers up to 2000 in 10 examples.*floats for targets"),
        ({"y": Y - 1}, "client '9' has label -1 .*0 to 1"),
        ({"y": Y + np.inf}, "client '2' has a NaN or infinite value in y"),
        ({"client": CLIENT[:9]}, r"client has shape \(9,\)"),
        ({"client": CLIENT.astype(object)}, "client has type object.*strings or integers"),
        ({"client": CLIENT / 1}, "client has type float64"),
        ({"client": X}, "one name per example"),
        ({"split": SPLIT == "test"}, "split has type bool.*train, val, test"),
        ({"split": SPLIT[:9]}, r"split has shape \(9,\)"),
        (
            {"split": np.char.upper(SPLIT)},
            "split has 'TRAIN' at example 0; use train, val, test",
        ),
        ({"split": ["train"] * 10}, "client '2' has no 'test' in split.*train, test"),
        ({"split": ["val", *SPLIT[1:]]}, "client '2' has no 'val' in split"),
        ({"split": SPLIT, "val_fraction": 0.1}, "data.val_fraction=0.1 .*set it to 0"),
        ({"val_fraction": 0.9}, "data.val_fraction=0.9"),
        ({"edges": [9, 2]}, r"edges has shape \(2,\)"),
        ({"edges": [(9, 2, 1)]}, r"edges has shape \(1, 3\)"),
        ({"edges": [("9", "2")]}, "edges has type <U1 and client has int64"),
        ({"edges": [(9.0, 2.0)]}, "edges has type float64"),
        ({"edges": [(9, 2), (9, 4)]}, r"number 1, \(9, 4\), names 4, who has no examples"),
        ({"edges": [(9, 2), (2, 11)]}, r"number 1, \(2, 11\), names 11"),
        ({"edges": [(9, 9)]}, r"number 0, \(9, 9\), joins a client to itself"),
        ({"edges": [(9, 2), (2, 9)]}, r"number 1, \(2, 9\), is given twice"),
        ({"edges": [(9, 2)], "edge_weight": [-1]}, r"number 0, \(9, 2\) \(weight -1.0\)"),
        ({"edges": [(9, 2)], "edge_weight": [1, 2]}, r"edge_weight has shape \(2,\) .*1 edges"),
        ({"edges": [(9, 2)], "edge_weight": ["a"]}, "edge_weight has .* type <U1"),
        ({"edge_weight": [1.0]}, "for 0 edges"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, named):
    with pytest.raises(ValueError, match=named) as told:
        from_arrays(**{"x": X, "y": Y, "client": CLIENT} | changes)
    assert "\n" not in str(told.value)


def test_file_is_what_its_arrays_are(tmp_path):
    arrays = {"x": X, "y": Y, "client": CLIENT.astype(str), "split": SPLIT}
    related = {"edges": [("9", "2"), ("10", "9")], "edge_weight": [1.0, 2.0], "directed": True}
    np.savez_compressed(tmp_path / "own.npz", **arrays, **related)
    loaded = custom(path=str(tmp_path / "own.npz"), seed=0, val_fraction=0.0)
    assert loaded.sha256 == from_arrays(**arrays, **related).sha256
    assert loaded.sha256 != from_arrays(**arrays, **related | {"directed": False}).sha256


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=np.arange(1000.0), y=Y, client=CLIENT)
    whole = path.read_bytes()
    for at, named in (
        (700, r"own.npz: the array 'x' cannot be read \(Bad CRC"),
        (whole.index(b"PK\1\2"), "own.npz is no whole npz file"),  # the archive's directory
    ):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=named):
            custom(path=path, seed=0, val_fraction=0.0)
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(ValueError, match="one.npy is no whole npz file"):
        custom(path=tmp_path / "one.npy", seed=0, val_fraction=0.0)


def test_directed_is_one_boolean(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=X, y=Y, client=CLIENT, directed=[1])
    with pytest.raises(ValueError, match=r"directed has shape \(1,\) and type int64"):
        custom(path=path, seed=0, val_fraction=0.0)


# ------------------------------------------------------------------- relations from the data


def scattered(num_clients=9, labelled=True, features=(2, 2), **changes):
    """Clients of different sizes, means and spreads; the last feature is the same for all."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(num_clients), 10 + np.arange(num_clients))
    x = rng.normal(client[:, None] % 3, 1 + client[:, None] % 2, (len(client), 4))
    x[:, -1] = 0.1
    y = rng.integers(0, 3, len(client)) if labelled else rng.normal(size=(len(client), 2))
    return from_arrays(**{"x": x.reshape(-1, *features), "y": y, "client": client} | changes)


@pytest.mark.parametrize("labelled", [True, False])
def test_statistics_are_those_of_real_training_examples(labelled):
    made = scattered(labelled=labelled)
    rows = []
    for i in range(9):
        x, y = real(made.data.train, i)
        x = x.reshape(len(x), 4)[:, :3].astype(float)
        if labelled:
            of_y = [np.mean(y == label) for label in range(3)]
        else:
            of_y = [*y.mean(0, dtype=float), *y.std(0, dtype=float)]
        rows.append([*x.mean(0), *x.std(0), *of_y])
    rows = np.array(rows)
    expected = (rows - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(knn.statistics(made), expected, rtol=1e-6, atol=1e-9)


def test_statistics_do_not_look_at_padding_or_test_examples():
    made = scattered()
    train, test = made.data.train, made.data.evals["test"]
    padded = np.arange(train.x.shape[1]) >= train.count[:, None]
    x = np.where(padded[..., None, None], np.float32(1e9), train.x)
    y = np.where(padded, 2, train.y)
    poisoned = made.data._replace(
        train=train._replace(x=x, y=y), evals={"test": test._replace(x=test.x + 7)}
    )
    changed = made._replace(data=poisoned)
    np.testing.assert_array_equal(knn.statistics(changed), knn.statistics(made))


def test_neighbours_have_the_nearest_statistics():
    """Every pair against a search by sorting, one client at a time."""
    made = scattered()
    points = knn.statistics(made)
    expected = np.zeros((9, 9))
    for i in range(9):
        far = sorted((np.linalg.norm(points[i] - points[j]), j) for j in range(9) if j != i)
        for _, j in far[:2]:
            expected[i, j] = expected[j, i] = 1
    joined = GRAPHS["knn"](made, neighbours=2)
    np.testing.assert_array_equal(relations.dense(joined.data.graph), expected)
    np.testing.assert_array_equal(joined.data.train.x, made.data.train.x)


def test_clients_with_like_labels_become_neighbours():
    """Even clients hold labels 0 and 1, odd ones 1 and 2; their inputs are alike."""
    client = np.repeat(np.arange(8), 20)
    x = np.tile(np.arange(20.0), 8)
    y = np.tile([0, 1], 80) + client % 2
    made = from_arrays(x, y, client, split=[*["train"] * 16, *["test"] * 4] * 8)
    graph = knn.knn(made, neighbours=3).data.graph
    assert (graph.senders % 2 == graph.receivers % 2).all()
    assert len(graph.senders) == 8 * 3


def test_hash_tells_the_relations():
    made = scattered()
    two, again, three = (knn.knn(made, neighbours=k).sha256 for k in (2, 2, 3))
    assert len({made.sha256, two, three}) == 3 and two == again
    assert federation.with_graph(made, made.data.graph).sha256 != made.sha256
    assert GRAPHS["own"](made) is made


def test_relations_nobody_can_tell_are_refused():
    alike = from_arrays(np.full((20, 2), 0.1), [0, 1] * 10, np.repeat(range(2), 10), split=PAIR)
    with pytest.raises(ValueError, match="equal statistics.*data.graph=own"):
        knn.knn(alike, neighbours=1)
    with pytest.raises(ValueError, match="data.neighbours=9 .*clients, 9; set"):
        knn.knn(scattered(), neighbours=9)


PAIR = ["train"] * 6 + ["test"] * 4 + ["train"] * 6 + ["test"] * 4


# ------------------------------------------------------------------------------------- runs


def small(method, path, **changes):
    config = configuration.get_config()
    settings = {"algorithm.name": method, "data.path": str(path), "rounds": 3, "eval_every": 3}
    config.update_from_flattened_dict(SMALL | settings | changes)
    return config


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file as a user writes it first: examples of a shape, no split, no relations."""
    path = tmp_path_factory.mktemp("own") / "federation.npz"
    rng = np.random.default_rng(0)
    client = np.repeat([f"site {i}" for i in range(6)], 15)
    np.savez(path, x=rng.normal(size=(90, 2, 3)), y=rng.integers(0, 3, 90), client=client)
    return path


@pytest.mark.parametrize(
    "method, graph", [("panacea", "knn"), ("fedavg", "own"), ("ditto", "own")]
)
def test_own_file_without_relations_trains(own, method, graph):
    changes = {"data.graph": graph, "data.neighbours": 2}
    results = graphfl_jax.run(small(method, own, **changes)).results
    assert results["dataset"]["name"] == "custom" and results["dataset"]["source"] == "own"
    assert not results["diverged"] and results["metric"] == "accuracy"
    assert len(results["scores"]["final"]["P"]["per_client"]) == 6


def test_arrays_in_memory_train_as_their_file_does(own):
    config = small("fedavg", own, **{"new_clients.fraction": 0.4})
    from_file = graphfl_jax.run(config).results
    with np.load(own) as arrays:
        federation = from_arrays(**arrays)
    config.data.path = ""
    in_memory = graphfl_jax.run(config, federation).results
    for field in ("dataset", "scores", "new_clients"):
        assert in_memory[field] == from_file[field]
    assert len(in_memory["new_clients"]["clients"]) == 2


def test_relations_are_asked_for_where_they_play_a_part(own):
    with pytest.raises(ValueError, match="algorithm.name='panacea' needs .*data.graph=knn"):
        graphfl_jax.run(small("panacea", own))


def test_the_readmes_example_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = README.read_text().split("## Your own data")[1].split("\n## ")[0]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    exec(example, {})
    assert "--config.data.path=federation.npz" in section
    results = graphfl_jax.run(small("panacea", "federation.npz")).results
    assert results["dataset"]["source"] == "own" and not results["diverged"]
