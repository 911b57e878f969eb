"""The user's own data: arrays, files of arrays, relations from the data, and runs."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import graphfl_jax
from graphfl_jax import tree
from graphfl_jax.build import arrange, load_federation
from graphfl_jax.configs import change
from graphfl_jax.configs import custom as configuration
from graphfl_jax.configs.values import current_values
from graphfl_jax.data import GRAPHS, federation, from_arrays, knn, label_skew, relations
from graphfl_jax.data.custom import custom
from graphfl_jax.data.splits import RandomSplit
from tests.federations import small_config

README = Path(__file__).parents[2] / "README.md"

# As strings, "10" is the first client. The first feature of a row is its index.
CLIENT = np.array([9, 10, 9, 9, 2, 2, 10, 2, 9, 10])
X = np.stack([np.arange(10), CLIENT], axis=1)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
SPLIT = np.array(["train", "test", "test", "train", *["train", "test"] * 3])


def rows_of(part, i):
    """The rows of client i without padding."""
    return part.x[i, : part.count[i]], part.y[i, : part.count[i]]


def test_examples_go_to_their_clients_in_sorted_order():
    for client, order in ((CLIENT, [2, 9, 10]), (CLIENT.astype(str), [10, 2, 9])):
        made = from_arrays(X, Y, client, test_fraction=0.4)
        assert made.clients == tuple(map(str, order))
        assert (made.task, made.outputs, made.source) == ("classification", 3, "own")
        for i, name in enumerate(order):
            data = (made.data.train, *made.data.evals.values())
            parts = [rows_of(part, i) for part in data]
            x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            assert (x[:, 1] == name).all()
            assert sorted(x[:, 0]) == np.flatnonzero(name == CLIENT).tolist()
            np.testing.assert_array_equal(y, Y[x[:, 0].astype(int)])


def test_random_split_is_the_same_as_for_other_data_sets():
    settings = {"seed": 3, "val_fraction": 0.3, "test_fraction": 0.3}
    made = from_arrays(X, Y, CLIENT, **settings)
    for i, name in enumerate((2, 9, 10)):
        rows = np.flatnonzero(name == CLIENT)
        split = RandomSplit(**settings).of_client(i, len(rows))
        for part, chosen in split.items():
            data = made.data.train if part == "train" else made.data.evals[part]
            np.testing.assert_array_equal(rows_of(data, i)[0][:, 0], rows[chosen])


def test_given_split_is_used_and_hashed():
    made = from_arrays(X, Y, CLIENT, split=SPLIT)
    for i, name in enumerate((2, 9, 10)):
        for part, value in ((made.data.train, "train"), (made.data.evals["test"], "test")):
            expected = np.flatnonzero((name == CLIENT) & (value == SPLIT))
            np.testing.assert_array_equal(rows_of(part, i)[0][:, 0], expected)
    assert set(made.data.evals) == {"test"}
    assert from_arrays(X, Y, CLIENT, split=SPLIT, seed=1).sha256 == made.sha256
    other = SPLIT.copy()
    other[[0, 2]] = other[[2, 0]]
    assert from_arrays(X, Y, CLIENT, split=other).sha256 != made.sha256


def test_given_split_can_have_validation_examples():
    split = SPLIT.copy()
    split[[3, 9, 4]] = "val"
    split[[1, 5, 6]] = "train", "train", "test"
    made = from_arrays(X, Y, CLIENT, split=split)
    assert list(made.data.evals["val"].x[:, 0, 0]) == [4, 3, 9]


def test_validation_examples_are_drawn_from_the_training_examples_of_a_given_split():
    x, client = np.arange(12.0)[:, None], np.repeat([0, 1], 6)
    arrays = {"x": x, "y": x, "client": client, "split": ["train", "train", "test"] * 4}
    made, drawn = from_arrays(**arrays), from_arrays(**arrays, val_fraction=0.25, seed=3)
    for i in range(2):
        (train, val, test), (whole, tested) = (
            [sorted(rows_of(part, i)[0][:, 0]) for part in parts]
            for parts in (
                (drawn.data.train, drawn.data.evals["val"], drawn.data.evals["test"]),
                (made.data.train, made.data.evals["test"]),
            )
        )
        assert (len(train), len(val), test) == (3, 1, tested)
        assert sorted(train + val) == whole


def test_floats_are_targets_that_are_flattened():
    for shape, outputs in (((10,), 1), ((10, 2, 3), 6)):
        made = from_arrays(X, np.ones(shape), CLIENT, test_fraction=0.4)
        assert (made.task, made.outputs) == ("regression", outputs)
        assert made.data.train.y.shape[2:] == (outputs,)


@pytest.mark.parametrize("names", [(1, 2, 3), (-1, 0, 1), (5, 100, 2**40)])
def test_labels_are_a_set_whose_names_are_kept(names):
    plain = from_arrays(X, Y, CLIENT, test_fraction=0.4)
    made = from_arrays(X, np.array(names)[Y], CLIENT, test_fraction=0.4)
    assert (made.labels, made.outputs) == (names, 3) and plain.labels == ()
    assert made.sha256 == plain.sha256
    np.testing.assert_array_equal(made.data.train.y, plain.data.train.y)


def test_labels_from_0_on_have_no_names_and_the_hash_that_they_had():
    as_bytes = from_arrays(X, Y.astype(np.uint8), CLIENT, split=SPLIT)
    assert as_bytes.sha256 == from_arrays(X, Y, CLIENT, split=SPLIT).sha256
    assert as_bytes.sha256.startswith("dfb30773f48a526c")
    booleans = from_arrays(X, Y > 0, CLIENT, split=SPLIT)
    assert booleans.labels == () and booleans.outputs == 2
    assert booleans.sha256 == from_arrays(X, (Y > 0) * 1, CLIENT, split=SPLIT).sha256


COLUMN, HOT = Y[:, None].astype(float), np.eye(3)[Y]


@pytest.mark.parametrize(
    "y, what, cast",
    [
        (Y / 1, "3 different whole numbers", "y.ravel().astype(int)"),
        (COLUMN, "3 different whole numbers", "y.ravel().astype(int)"),
        (HOT, "one-hot rows", "y.argmax(axis=1)"),
        (HOT.astype(np.float16), "one-hot rows", "y.argmax(axis=1)"),
    ],
)
def test_floats_that_may_be_labels_are_said_and_can_be_labels(y, what, cast):
    options = {"test_fraction": 0.4}
    with pytest.warns(RuntimeWarning) as caught:
        guessed = from_arrays(X, y, CLIENT, **options)
    (message,) = [str(warning.message) for warning in caught]
    assert message == (
        f"the arrays: y has {what} of type {y.dtype}, so the task is a regression; for a "
        f"classification, set --config.data.task=classification or give {cast}, else set "
        "--config.data.task=regression"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labelled, plain, targets = (
            from_arrays(X, array, CLIENT, task=task, **options)
            for array, task in (
                (y, "classification"),
                (eval(cast, {"y": y}), ""),
                (y, "regression"),
            )
        )
    assert labelled.task == plain.task == "classification" and labelled.outputs == 3
    assert labelled.sha256 == plain.sha256 == from_arrays(X, Y, CLIENT, **options).sha256
    assert targets.task == guessed.task == "regression"
    assert targets.sha256 == guessed.sha256


def test_integers_that_may_be_targets_are_said_and_can_be_targets():
    y, client = np.arange(30) * 7, np.arange(30) % 3
    with pytest.warns(RuntimeWarning, match="30 different whole numbers of .*classification; "):
        assert from_arrays(y, y, client).outputs == 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = from_arrays(y, y, client, task="regression")
        assert made.sha256 == from_arrays(y, y.astype(float), client).sha256
        from_arrays(y, np.arange(30) % 15, client)
        from_arrays(y, y / 2, client)
    assert (made.task, made.outputs) == ("regression", 1)


@pytest.mark.parametrize("y", [X, X[:, :1]])
def test_rows_of_integers_are_labels_or_targets_as_the_task_says(y):
    with pytest.raises(ValueError, match="y has integers of shape"):
        from_arrays(X, y, CLIENT)
    made = from_arrays(X, y, CLIENT, task="regression", test_fraction=0.4)
    assert made.outputs == y.shape[1]


@pytest.mark.parametrize(
    "y", [Y + 0.5, HOT + HOT[::-1], np.where(Y, Y / 1, np.nan), HOT * 1e300]
)
def test_floats_that_are_no_labels_are_refused_as_labels(y):
    with pytest.raises(ValueError, match="y of type float64 and .* has no labels, as .*; give"):
        from_arrays(X, y, CLIENT, task="classification")


@pytest.mark.parametrize("classes", [9, 10])
def test_labels_from_1_on_are_divided_as_those_from_0_on(classes):
    k, y = {9: 3, 10: 2}[classes], np.arange(90) % classes
    deal = label_skew.pathological(clients=5, classes_per_client=k, seed=0)
    x = np.arange(90)
    plain, made = (from_arrays(x, y + first, partition=deal) for first in (0, 1))
    assert made.sha256 == plain.sha256 and made.labels == tuple(range(1, classes + 1))
    for i in range(5):
        assert len(np.unique(rows_of(made.data.train, i)[1])) == k


def test_classes_without_training_examples_are_not_divided():
    """Of ten classes, nine have training examples, and each client has three of them."""
    y, split = np.arange(90) % 10, np.where(np.arange(90) < 60, "train", "test")
    split[y == 4] = "test"
    deal = label_skew.pathological(clients=3, classes_per_client=3, seed=0)
    made = from_arrays(np.arange(90), y, partition=deal, split=split)
    held = [np.unique(rows_of(made.data.train, i)[1]).tolist() for i in range(3)]
    assert held == [[0, 1, 2], [3, 5, 6], [7, 8, 9]] and made.outputs == 10


def test_test_examples_that_are_training_examples_are_said():
    """Copies of other clients' training examples count, and those with other targets do not."""
    x = X * 1.0
    x[1:3], y = x[[5, 8]], Y.copy()  # example 2 is one of test, and 8 trains at its client
    y[1], y[2] = 1 - Y[5], Y[8]
    split = SPLIT.copy()
    assert split[2] == "test" and split[8] == "train"
    why = "1 of 5 test examples are .* the first is example 2, counted from 0; leave out copies"
    with pytest.warns(RuntimeWarning, match=f"^the arrays: {why}"):
        from_arrays(x, y, CLIENT, split=split)
    with pytest.warns(RuntimeWarning, match="test examples are training examples too"):
        from_arrays(x * 0, Y * 0 + (CLIENT == 9), CLIENT, test_fraction=0.4)


def test_numbers_that_float32_makes_equal_are_said_unless_they_are_scaled():
    x = np.stack([np.arange(90), 1_600_000_000 + np.arange(90)], axis=1)
    arrays = (Y[np.arange(90) % 10], CLIENT[np.arange(90) % 10])
    why = (
        "keeps 2 of 90 different numbers of feature 1 of x, counted from 0; set .*standard, or"
    )
    for integers in (x, x.astype(float)):
        with pytest.warns(RuntimeWarning, match=why):
            from_arrays(integers, *arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = from_arrays(x, *arrays, scale="standard")
        from_arrays(x - x.min(axis=0), *arrays)
        from_arrays(np.random.default_rng(0).normal(size=(90, 50)), *arrays)
    train = scaled.data.train
    numbers = np.concatenate([rows_of(train, i)[0][:, 1] for i in range(3)])
    assert len(np.unique(numbers)) == train.count.sum()


def test_edges_name_clients():
    edges, weight = np.array([[10, 2], [9, 10]]), [2.0, 3.0]
    graph = from_arrays(X, Y, CLIENT, edges=edges, edge_weight=weight).data.graph
    np.testing.assert_array_equal(
        relations.weight_matrix(graph), [[0, 0, 2], [0, 0, 3], [2, 3, 0]]
    )
    graph = from_arrays(
        X, Y, CLIENT.astype(str), edges=edges.astype(str), directed=True
    ).data.graph  # 10, 2, 9
    np.testing.assert_array_equal(
        relations.weight_matrix(graph), [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    )
    for empty in (None, [], np.zeros((0, 2))):
        assert len(from_arrays(X, Y, CLIENT, edges=empty).data.graph.senders) == 0


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"x": X.astype(str)}, "x has type <U.*numbers"),
        ({"x": X * 1j}, "x has type complex128"),
        ({"x": X[:, :0]}, r"x has shape \(10, 0\).*one row for each"),
        ({"x": np.where(X == 4, np.nan, X)}, "client '2' has a NaN .* in x of its example 0"),
        ({"x": 0.0}, r"x has shape \(\); give one row for each"),
        ({"y": Y[:7]}, r"y has shape \(7,\) and x has \(10, 2\)"),
        ({"y": Y.astype("S1")}, r"y has type \|S1.*integers or text for labels, floats for"),
        ({"y": X.astype(str)}, r"y has text of shape \(10, 2\), such as '0'; give numbers"),
        ({"y": Y.astype(str), "task": "regression"}, r"y has text of shape \(10,\), such as"),
        ({"y": ["a"] * 10}, "y has the label a alone; give at least two labels$"),
        ({"y": Y[:, None]}, r"y has integers of shape \(10, 1\); set .*data.task=class.*, or"),
        ({"y": Y * 0 + 7}, "y has the label 7 alone; give at least two labels"),
        ({"y": Y == 9}, "y has the label False alone"),
        ({"y": Y + np.inf}, "client '2' has a NaN or infinite value in y"),
        ({"client": CLIENT[:9]}, r"client has shape \(9,\)"),
        ({"client": CLIENT.astype(object)}, "client has type object.*strings or integers"),
        ({"client": CLIENT / 1}, r"client has type float64; .* as by client.astype\(int\)"),
        (
            {"client": np.where(X[:, 0] == 4, np.nan, CLIENT)},
            "client has 1 missing values, the first in row 4, counted from 0; leave",
        ),
        (
            {"client": ["a", "b", "b", None, *"aaabbb"]},
            "client has 1 missing values, the first in row 3, counted from 0; leave",
        ),
        ({"client": [*"aab", np.nan, *"aaabbb"]}, "client has 1 missing values, the first in"),
        ({"client": ["a", 1] * 5}, "client has type object, with 1 at example 1 and str else"),
        ({"y": ["a", np.nan] * 5}, "y has 5 missing values, the first in row 1, counted from"),
        (
            {"client": [*"aabb"] * 2 + [*"ab"], "edges": [("a", "b"), ("a", np.nan)]},
            "edges has 1 missing values, the first in row 1, counted from 0; leave their rows",
        ),
        (
            {"client": np.array([7, *"abababab", 7], object)},
            "client has type object, with 7 at example 0 and str elsewhere",
        ),
        ({"x": X.astype(object)}, r"x has type object; give numbers, as by x.astype\(float\)"),
        (
            {"x": np.where(X == 4, None, X)},
            "x has 1 missing values, the first in row 4, counted from 0; leave their rows out",
        ),
        ({"client": X}, "one name per example"),
        ({"split": SPLIT == "test"}, "split has type bool.*train, val, test"),
        ({"split": SPLIT[:9]}, r"split has shape \(9,\)"),
        (
            {"split": np.char.upper(SPLIT)},
            "split has 'TRAIN' at example 0; use train, val, test",
        ),
        ({"split": ["train"] * 10}, "client '2' has no 'test' in split.*train, test"),
        ({"split": ["val", *SPLIT[1:]]}, "client '2' has no 'val' in split"),
        ({"split": SPLIT, "val_fraction": 0.1}, "none of them is for val; .* larger share"),
        ({"val_fraction": 0.9}, "data.val_fraction=0.9"),
        ({"edges": [9, 2]}, r"edges has shape \(2,\)"),
        ({"edges": [(9, 2, 1)]}, r"edges has shape \(1, 3\)"),
        ({"edges": [("9", "2")]}, "edges has type <U1 and client has int64"),
        ({"edges": [(9.0, 2.0)]}, "edges has type float64"),
        (
            {"edges": [(9, 2), (9, 4)]},
            r"number 1, \(9, 4\), names client 4, which has no examples",
        ),
        ({"edges": [(9, 2), (2, 11)]}, r"number 1, \(2, 11\), names client 11"),
        ({"edges": [(9, 9)]}, r"number 0, \(9, 9\), joins a client to itself"),
        ({"edges": [(9, 2), (2, 9)]}, r"number 1, \(2, 9\), is given twice"),
        ({"edges": [(9, 2)], "edge_weight": [-1]}, r"number 0, \(9, 2\) \(weight -1.0\)"),
        ({"edges": [(9, 2)], "edge_weight": [1, 2]}, r"edge_weight has shape \(2,\) .*1 edges"),
        ({"edges": [(9, 2)], "edge_weight": ["a"]}, "edge_weight has .* type <U1"),
        ({"edge_weight": [1.0]}, "for 0 edges"),
        ({"x": np.ma.masked_equal(X, 4)}, "x has 1 masked values; leave their examples out"),
        ({"y": np.ma.masked_equal(Y, 0)}, "y has 4 masked values"),
        ({"x": [[1.0, 2.0], [3.0]]}, "x has rows of several shapes; give all one"),
        ({"task": "labels"}, "data.task='labels' is unknown; choose from classification, r"),
    ],
)
def test_invalid_arrays_are_refused(changes, named):
    with pytest.raises(ValueError, match=named) as caught:
        from_arrays(**{"x": X, "y": Y, "client": CLIENT} | changes)
    message = str(caught.value)
    assert "\n" not in message and "; " in message and not message.endswith(".")


def test_strings_that_are_objects_are_strings():
    """As pandas has them in a column."""
    strings = {"client": CLIENT.astype(str), "split": SPLIT, "edges": np.array([("9", "2")])}
    made = from_arrays(X, Y, **{name: array.astype(object) for name, array in strings.items()})
    assert made.clients == ("10", "2", "9")
    assert made.sha256 == from_arrays(X, Y, **strings).sha256


def test_file_gives_the_same_as_its_arrays(tmp_path):
    arrays = {"x": X, "y": Y, "client": CLIENT.astype(str), "split": SPLIT}
    related = {"edges": [("9", "2"), ("10", "9")], "edge_weight": [1.0, 2.0], "directed": True}
    np.savez_compressed(tmp_path / "own.npz", **arrays, **related)
    loaded = custom(path=str(tmp_path / "own.npz"), seed=0)
    assert loaded.sha256 == from_arrays(**arrays, **related).sha256
    assert loaded.sha256 != from_arrays(**arrays, **related | {"directed": False}).sha256


def test_task_of_a_file_is_a_setting(tmp_path):
    """An older run, whose configuration has no such field, has the default, by the type."""
    np.savez(tmp_path / "own.npz", x=X, y=COLUMN, client=CLIENT)
    config = change(
        configuration.get_config("fedavg"), {"data.path": str(tmp_path / "own.npz")}
    )
    assert load_federation(change(config, {"data.task": "classification"})).outputs == 3
    older = flatten_dict(config.to_dict(), sep=".")
    del older["data.task"]
    assert current_values(older)["data.task"] == ""


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=np.arange(1000.0), y=Y, client=CLIENT)
    intact = path.read_bytes()
    directory = intact.index(b"PK\1\2")  # of the zip file
    for position, named in (
        (700, r"own.npz: the array 'x' cannot be read \(Bad CRC"),
        (directory, "own.npz: the file is not a complete npz file; write it with np.savez"),
    ):
        damaged = bytearray(intact)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=named):
            custom(path=path, seed=0)
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(ValueError, match="one.npy: .* neither a table, .*nor a complete npz"):
        custom(path=tmp_path / "one.npy", seed=0)
    (tmp_path / "table.txt").write_text("x,y,client\n1,2,a\n")
    with pytest.raises(ValueError, match=r"name ends in \.csv or \.parquet, .*; rename it"):
        custom(path=tmp_path / "table.txt", seed=0)


def test_path_is_required_and_must_be_a_file(tmp_path):
    with pytest.raises(
        ValueError, match="data.path is empty; set --config.data.path to .*x, y"
    ):
        custom(seed=0)
    with pytest.raises(FileNotFoundError, match="none.npz' is not a file; correct the path"):
        custom(path=str(tmp_path / "none.npz"), seed=0)


def test_errors_in_a_file_name_the_file(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=X, y=Y, client=CLIENT[:9])
    with pytest.raises(ValueError, match=r"own.npz: client has shape \(9,\)") as caught:
        custom(path=str(path), seed=0)
    assert "custom: " not in str(caught.value)


def test_warnings_of_a_file_name_the_file_and_the_field(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=X, y=Y / 1, client=np.arange(10) % 2)
    with pytest.warns(RuntimeWarning, match=f"^{path}: y has 3 different whole numbers"):
        assert custom(path=str(path), seed=0).name == "custom"


def test_directed_must_be_a_boolean(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=X, y=Y, client=CLIENT, directed=[1])
    with pytest.raises(ValueError, match=r"directed has shape \(1,\) and type int64"):
        custom(path=path, seed=0)


# ------------------------------------------------------------------- relations from the data


def scattered(num_clients=9, labelled=True, features=(2, 2), **changes):
    """Clients of different sizes, means and spreads. The last feature is constant."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(num_clients), 10 + np.arange(num_clients))
    x = rng.normal(client[:, None] % 3, 1 + client[:, None] % 2, (len(client), 4))
    x[:, -1] = 0.1
    y = rng.integers(0, 3, len(client)) if labelled else rng.normal(size=(len(client), 2))
    return from_arrays(**{"x": x.reshape(-1, *features), "y": y, "client": client} | changes)


@pytest.mark.parametrize("labelled", [True, False])
def test_statistics_are_of_training_examples_without_padding(labelled):
    made = scattered(labelled=labelled)
    rows = []
    for i in range(9):
        x, y = rows_of(made.data.train, i)
        x = x.reshape(len(x), 4)[:, :3].astype(float)
        if labelled:
            of_y = [np.mean(y == label) for label in range(3)]
        else:
            of_y = [*y.mean(0, dtype=float), *y.std(0, dtype=float)]
        rows.append([*x.mean(0), *x.std(0), *of_y])
    rows = np.array(rows)
    expected = (rows - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(knn.statistics(made), expected, rtol=1e-6, atol=1e-9)


def test_statistics_do_not_depend_on_padding_or_test_examples():
    made = scattered()
    train, test = made.data.train, made.data.evals["test"]
    padded = np.arange(train.x.shape[1]) >= train.count[:, None]
    x = np.where(padded[..., None, None], np.float32(1e9), train.x)
    y = np.where(padded, 2, train.y)
    data = made.data._replace(
        train=train._replace(x=x, y=y), evals={"test": test._replace(x=test.x + 7)}
    )
    changed = made._replace(data=data)
    np.testing.assert_array_equal(knn.statistics(changed), knn.statistics(made))


def test_neighbours_have_the_nearest_statistics():
    """Compares all edges with a search by sorting, one client at a time."""
    made = scattered()
    points = knn.statistics(made)
    expected = np.zeros((9, 9))
    for i in range(9):
        others = [j for j in range(9) if j != i]
        distances = sorted((np.linalg.norm(points[i] - points[j]), j) for j in others)
        for _, j in distances[:2]:
            expected[i, j] = expected[j, i] = 1
    joined = GRAPHS["knn"](made, neighbours=2)
    np.testing.assert_array_equal(relations.weight_matrix(joined.data.graph), expected)
    np.testing.assert_array_equal(joined.data.train.x, made.data.train.x)


def test_new_clients_do_not_change_who_is_related_in_training():
    """The training graph is that of a federation that never had the new clients."""
    config = small_config(
        data__graph="knn", data__neighbours=2, new_clients__fraction=0.34, seed=3
    )
    made = scattered()
    whole = arrange(config, made)
    assert whole.new_clients == 3 and len(whole.clients) == 9
    alone = [made.clients.index(name) for name in whole.clients[:6]]
    data = made.data._replace(
        train=tree.take(made.data.train, np.array(alone)),
        graph=relations.from_edges(6, []),
    )
    others = made._replace(data=data, clients=tuple(made.clients[i] for i in alone))
    expected = relations.weight_matrix(GRAPHS["knn"](others, neighbours=2).data.graph)
    np.testing.assert_array_equal(relations.weight_matrix(whole.data.graph), expected)
    actual = relations.weight_matrix(whole.everyone.graph)
    np.testing.assert_array_equal(actual[:6, :6], expected)
    assert not actual[6:, 6:].any()
    points = knn.statistics(whole)
    for i in range(6, 9):
        gaps = np.linalg.norm(points[:6] - points[i], axis=1)
        assert set(np.flatnonzero(actual[i])) == set(np.argsort(gaps)[:2])


def test_clients_with_similar_labels_become_neighbours():
    """Even clients have labels 0 and 1, odd ones 1 and 2. All have the same inputs."""
    client = np.repeat(np.arange(8), 20)
    x = np.tile(np.arange(20.0), 8)
    y = np.tile([0, 1], 80) + client % 2
    made = from_arrays(x, y, client, split=[*["train"] * 16, *["test"] * 4] * 8)
    graph = knn.knn(made, neighbours=3).data.graph
    assert (graph.senders % 2 == graph.receivers % 2).all()
    assert len(graph.senders) == 8 * 3


def test_hash_depends_on_the_relations():
    made = scattered()
    two, again, three = (knn.knn(made, neighbours=k).sha256 for k in (2, 2, 3))
    assert len({made.sha256, two, three}) == 3 and two == again
    assert federation.with_graph(made, made.data.graph).sha256 != made.sha256
    assert GRAPHS["own"](made) is made


@pytest.mark.filterwarnings("ignore:custom. 8 of 8 test examples")
def test_clients_with_equal_statistics_are_refused():
    client, split = np.repeat(range(2), 10), (["train"] * 6 + ["test"] * 4) * 2
    equal = from_arrays(np.full((20, 2), 0.1), [0, 1] * 10, client, split=split)
    with pytest.raises(ValueError, match="equal statistics.*graph=own, or choose a"):
        knn.knn(equal, neighbours=1)


def test_more_neighbours_than_other_clients_are_refused():
    with pytest.raises(ValueError, match="data.neighbours=9 .*clients, 9; set"):
        knn.knn(scattered(), neighbours=9)


# ------------------------------------------------------------------------------------- runs


def small(method, path, **changes):
    settings = {"data.path": str(path), "rounds": 3, "eval_every": 3, "cohort_size": 4}
    settings |= {"local_steps": 5, "batch_size": 6, "model.hidden": (5,)}
    return change(configuration.get_config(method), settings | changes)


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    """A file of examples [2, 3] without a split and without relations."""
    path = tmp_path_factory.mktemp("own") / "federation.npz"
    rng = np.random.default_rng(0)
    client = np.repeat([f"site {i}" for i in range(6)], 15)
    np.savez(path, x=rng.normal(size=(90, 2, 3)), y=rng.integers(0, 3, 90), client=client)
    return path


@pytest.mark.release
@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize(
    "method, graph",
    [
        ("panacea", "knn"),
        pytest.param("ditto", "own", marks=pytest.mark.release),
    ],
)
def test_file_without_relations_trains(data_file, method, graph):
    changes = {"data.graph": graph} | ({"data.neighbours": 2} if graph == "knn" else {})
    results = graphfl_jax.run(small(method, data_file, **changes)).results
    assert results["dataset"]["name"] == "custom" and results["dataset"]["source"] == "own"
    assert not results["diverged"] and results["metric"] == "accuracy"
    assert len(results["scores"]["final"]["P"]["per_client"]) == 6


@pytest.mark.release
@pytest.mark.usefixtures("shared_programs")
def test_arrays_in_memory_train_the_same_as_their_file(data_file):
    config = small("fedavg", data_file, **{"new_clients.fraction": 0.4})
    from_file = graphfl_jax.run(config).results
    with np.load(data_file) as arrays:
        made = from_arrays(**arrays)
    in_memory = graphfl_jax.run(change(config, {"data.path": ""}), made).results
    for field in ("dataset", "scores", "new_clients"):
        assert in_memory[field] == from_file[field]
    assert len(in_memory["new_clients"]["clients"]) == 2


def test_missing_relations_are_refused_for_methods_that_need_them(data_file):
    with pytest.raises(ValueError, match="algorithm.name='panacea'.*data.graph=knn"):
        graphfl_jax.run(small("panacea", data_file))


def test_example_in_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = README.read_text().split("## Your own data")[1].split("\n## ")[0]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    exec(example, {})
    assert "--config.data.path=federation.npz" in section
    results = graphfl_jax.run(small("panacea", "federation.npz")).results
    assert results["dataset"]["source"] == "own" and not results["diverged"]


THIRDS = ["train", "train", "test"] * 4


@pytest.mark.parametrize(
    "options, why",
    [
        (
            {"split": ["train", "val", "test"] * 4, "val_fraction": 0.1},
            'data.val_fraction=0.1 has no effect on a split with "val"; leave it out',
        ),
        (
            {"split": THIRDS, "test_fraction": 0.5},
            "test_fraction=0.5 .* on a given split; leave",
        ),
        ({"cap": 5}, "cap=5 has no effect without a partition; leave it out"),
        ({"directed": True}, "directed=True has no effect without edges; leave it out"),
        ({"scale_by": "client"}, "data.scale_by=client has no effect with data.scale=none; l"),
    ],
)
def test_options_that_nothing_reads_are_refused(options, why):
    x, client = np.arange(24.0).reshape(12, 2), np.repeat([0, 1], 6)
    with pytest.raises(ValueError, match=f"^the arrays: {why}"):
        from_arrays(x, np.arange(12) % 2, client, **options)


def test_what_a_run_with_a_federation_does_not_read_is_refused():
    """It would be recorded, and have no effect."""
    x, client = np.arange(24.0).reshape(12, 2), np.repeat([0, 1], 6)
    federation = from_arrays(x, np.arange(12) % 2, client)
    fields = (("scale", "standard"), ("task", "regression"), ("val_fraction", 0.1))
    for name, value in fields:
        config = change(configuration.get_config("fedavg"), {f"data.{name}": value})
        why = f"^data.{name}={value} is not read, since a fed.*; leave .* to from_arrays"
        with pytest.raises(ValueError, match=why):
            graphfl_jax.run(config, federation)
    for options, why in (
        ({"save_models": True}, "^save_models=True needs a folder; set --out"),
        ({"accept_changes": True}, "^accept_changes=True is not read without resume=True"),
    ):
        with pytest.raises(ValueError, match=why):
            graphfl_jax.run(configuration.get_config("fedavg"), federation, **options)


@pytest.mark.parametrize("method", ["fedavg", pytest.param("panacea", marks=pytest.mark.slow)])
def test_the_defaults_learn_a_regression_in_raw_units(method):
    """Four targets; fewer clients than the default cohort."""
    rng = np.random.default_rng(0)
    x = rng.uniform(1.2, 6.2, (120, 6))
    y = x @ rng.normal(size=(6, 4)) + 3
    made = from_arrays(x, y, np.arange(120) % 4, edges=[(0, 1), (2, 3)])
    config = change(configuration.get_config(method), {"rounds": 30, "eval_every": 30})
    result = graphfl_jax.run(config, made)
    assert not result.results["diverged"]
    constant = federation.score_of_constant(result.federation)
    assert result.results["scores"]["final"]["P"]["mean"] < 0.5 * constant
