"""The user's own data in tables, in folders of other libraries, and files of relations."""

import json
import pickle
import re
import sys
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import graphfl_jax
from graphfl_jax.configs import change
from graphfl_jax.configs import custom as configuration
from graphfl_jax.data import from_arrays, label_skew, relations
from graphfl_jax.data.custom import custom
from graphfl_jax.data.tables import Columns

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "data.md"

# Four clients with six training and two test examples; the numbers are exact as text.
RNG = np.random.default_rng(0)
X = RNG.integers(-8, 8, (32, 3)) / 4
Y = np.arange(32) % 3
CLIENT = np.repeat(range(4), 8)
SPLIT = np.array((["train"] * 6 + ["test"] * 2) * 4)
DOORS = ("npz", "csv", "parquet", "pfllib", "leaf")


def write_table(path, header, columns):
    rows = [header, *zip(*columns, strict=True)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def examples_of(client, part):
    rows = (client == CLIENT) & (part == SPLIT)
    return {"x": X[rows], "y": Y[rows]}


def write_pfllib(folder, total=4, made=4, **changes):
    """A folder as a generator of PFLlib writes it."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for i in range(made):
            data = examples_of(i, part) | changes
            np.savez_compressed(folder / part / f"{i}.npz", data=data)
    facts = {"num_clients": total, "num_classes": 3, "non_iid": True, "partition": "dir"}
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def write_leaf(folder, users=(0, 1, 2, 3), **changes):
    """A folder as LEAF's preprocess.sh -t sample writes it, of two files per part."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for number, some in enumerate((users[:2], users[2:])):
            data = {
                str(u): {k: v.tolist() for k, v in examples_of(u, part).items()} | changes
                for u in some
            }
            counts = [len(of["y"]) for of in data.values()]
            content = {"users": list(data), "num_samples": counts, "user_data": data}
            name = f"all_data_{number}_niid_0_keep_0_{part}_9.json"
            (folder / part / name).write_text(json.dumps(content))
    return folder


def write(door, folder):
    """The examples in the form of a door; the value of data.path."""
    path = folder / f"own.{door}"
    if door == "npz":
        np.savez(path, x=X, y=Y, client=CLIENT, split=SPLIT)
    elif door == "csv":
        write_table(path, ("client", "a", "b", "c", "y", "split"), (CLIENT, *X.T, Y, SPLIT))
    elif door == "parquet":
        pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
        columns = {"client": CLIENT.astype(str), "a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}
        table = pyarrow.table(columns | {"y": Y, "split": SPLIT})
        number = table.column_names.index("split")  # as pandas writes a column of categories
        split = table["split"].dictionary_encode()
        parquet.write_table(table.set_column(number, "split", split), path)
    elif door == "pfllib":
        write_pfllib(path, made=5)  # one more than its config.json says
    else:
        write_leaf(path)
    return str(path)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.filterwarnings("ignore:.*own.(csv|parquet). y is integers of the column y")
def test_every_form_gives_the_same_federation(tmp_path, door):
    made = custom(path=write(door, tmp_path), seed=0)
    assert made.sha256 == from_arrays(X, Y, CLIENT, split=SPLIT).sha256
    assert made.clients == tuple("0123") and made.name == "custom" and made.source == "own"


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs")
@pytest.mark.filterwarnings("ignore:.*own.csv. y is integers of the column y")
def test_every_form_trains_the_same(tmp_path):
    scores = []
    for door in set(DOORS) - {"parquet"}:
        sizes = {"rounds": 2, "cohort_size": 4, "local_steps": 2, "batch_size": 3}
        sizes |= {"model.hidden": (4,), "data.path": write(door, tmp_path)}
        run = graphfl_jax.run(change(configuration.get_config("fedavg"), sizes))
        scores.append(run.results["scores"])
    assert len(scores) == 4 and all(of_door == scores[0] for of_door in scores)


def test_columns_of_a_table_are_chosen_and_what_is_guessed_is_said(tmp_path):
    names = np.array(["01", "2", "b", "c"])[CLIENT]
    prices, kinds = X @ [1, 2, 3] + 0.5, np.array(["low", "mid", "top"])[Y]
    header = ("shop", "a", "b", "c", "price", "label")
    path = str(write_table(tmp_path / "s.csv", header, (names, *X.T, prices, kinds)))
    with pytest.warns(RuntimeWarning) as caught:
        made = custom(path=path, columns=Columns("shop"), seed=0)
    assert [str(warning.message) for warning in caught] == [
        f"{path}: y is text of the column label, and x is of a, b, c, price; to take others, "
        "set --config.data.target_columns and feature_columns"
    ]
    assert made.labels == ("low", "mid", "top") and made.clients == ("01", "2", "b", "c")
    assert made.sha256 == from_arrays(np.c_[X, prices], kinds, names).sha256
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = Columns("shop", ("price", "c"), ("b",))
        made = custom(path=path, columns=columns, scale="standard", seed=0)
    assert (made.task, made.labels, made.outputs) == ("regression", ("price", "c"), 2)
    assert "targets: price, c" in made.describe()
    assert (
        made.sha256
        == from_arrays(X[:, 1:2], np.c_[prices, X[:, 2]], names, scale="standard").sha256
    )
    errors = made.units.errors({"abs": np.ones((4, 2)), "square": np.ones((4, 2))}, made.labels)
    assert list(errors) == ["price", "c"]


def test_table_without_clients_is_divided(tmp_path):
    path = write_table(tmp_path / "own.csv", ("a", "b", "c", "target"), (*X.T, Y))
    partition = label_skew.iid(clients=3, seed=0)
    with pytest.warns(
        RuntimeWarning, match="integers of the column target, and x is of a, b, c;"
    ):
        made = custom(path=str(path), partition=partition, seed=0)
    assert made.sha256 == from_arrays(X, Y, partition=partition).sha256


def test_a_table_may_have_an_ending_in_capitals(tmp_path):
    path = write_table(tmp_path / "OWN.CSV", ("client", "a", "b", "c", "y"), (CLIENT, *X.T, Y))
    with pytest.warns(RuntimeWarning, match="integers of the column y"):
        made = custom(path=str(path), seed=0)
    assert made.sha256 == from_arrays(X, Y, CLIENT).sha256
    missing = tmp_path / "GONE.PARQUET"
    missing.touch()
    with pytest.raises(ValueError, match="GONE.PARQUET.*(needs pyarrow|Parquet file)"):
        custom(path=str(missing), seed=0)


def test_parquet_names_the_extra_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "own.parquet").touch()
    why = "own.parquet needs pyarrow, which is not installed; run pip install pyarrow, or"
    with pytest.raises(ValueError, match=why):
        custom(path=str(tmp_path / "own.parquet"), seed=0)


def test_parquet_with_nulls_lists_or_damage_is_refused(tmp_path):
    pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    path, columns = tmp_path / "own.parquet", {"client": CLIENT, "y": Y, "a": X[:, 0].tolist()}
    for changes, why in (
        ({"a": [1, 2, None, *range(29)]}, "column 'a' has no value in row 2, counted from 0"),
        ({"client": [*"ab", None, *("c" * 29)]}, "column 'client' has no value in row 2"),
        ({"b": [[1, 2]] * 32}, r"column 'b' has '\[1, 2\]' in row 0, .* is no number; correct"),
    ):
        parquet.write_table(pyarrow.table(columns | changes), path)
        with pytest.raises(ValueError, match=f"own.parquet: {why}"):
            custom(path=str(path), seed=0)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="own.parquet: the file is not a complete Parquet"):
        custom(path=str(path), seed=0)


def test_words_for_a_missing_value_are_said_and_digits_have_no_underscores(tmp_path):
    kinds = np.array(["low", "NA", "top"])[Y]
    file, header = tmp_path / "s.csv", ("client", "a", "y")
    path = str(write_table(file, header, (CLIENT, X[:, 0], kinds)))
    columns = Columns("client", ("y",), ("a",))
    first, rows = int(np.argmax(kinds == "NA")), int(np.sum(kinds == "NA"))
    said = f"column 'y' has 'NA' as a name in {rows} rows, the first is row {first}, counted"
    with pytest.warns(RuntimeWarning, match=said):
        made = custom(path=path, columns=columns, seed=0)
    assert made.labels == ("NA", "low", "top")
    write_table(file, header, (CLIENT, ["1_0", *X[1:, 0]], Y))
    with pytest.raises(ValueError, match="column 'a' has '1_0' in row 0, .* is no number"):
        custom(path=path, columns=columns, seed=0)


ADJACENCY = np.array([[1, 1, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]])


def edges_of(tmp_path, path, **arrays):
    """The matrix of the relations that a file gives to the four clients."""
    arrays = {"x": X, "y": Y, "client": CLIENT} | arrays
    np.savez(tmp_path / "own.npz", **arrays)
    made = custom(path=str(tmp_path / "own.npz"), edges=str(path), seed=0)
    return np.asarray(relations.weight_matrix(made.data.graph))


@pytest.mark.parametrize("form", ["pairs", "named", "csv", "npy", "npz"])
def test_relations_are_read_from_every_form(tmp_path, form):
    path = tmp_path / ("e.csv" if form in ("pairs", "named") else f"e.{form}")
    if form == "pairs":
        path.write_text("from,to\n0,1\n 3,1\n")
    elif form == "named":  # in an order of its own
        order = [3, 1, 0, 2]
        rows = np.c_[order, ADJACENCY[np.ix_(order, order)]]
        path.write_text("," + ",".join(map(str, order)) + "\n")
        with path.open("a") as file:
            np.savetxt(file, rows, "%d", delimiter=",")
    elif form == "csv":
        np.savetxt(path, ADJACENCY, delimiter=",")
    elif form == "npy":
        np.save(path, ADJACENCY)
    else:
        np.savez(path, ADJACENCY > 0)
    expected = ADJACENCY * (1 - np.eye(4))
    np.testing.assert_array_equal(edges_of(tmp_path, path), expected)


def test_relations_have_weights_and_directions(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("from,to,weight\nb,a,2.5\n")
    names = np.array([*"abcd"])[CLIENT]
    weights = edges_of(tmp_path, path, client=names)
    assert weights[0, 1] == weights[1, 0] == 2.5 and np.count_nonzero(weights) == 2
    matrix = np.triu(ADJACENCY * 3.0, 1)
    np.save(tmp_path / "e.npy", matrix)
    with pytest.warns(RuntimeWarning, match="e.npy: .* not symmetric for 2 of 6 pairs of"):
        np.testing.assert_array_equal(edges_of(tmp_path, tmp_path / "e.npy"), matrix)


def test_names_of_a_matrix_decide_and_clients_that_it_lacks_are_said(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text(",0,1,3\n3,0,7,0\n0,0,1,0\n1,1,0,7\n")  # rows in another order
    expected = np.zeros((4, 4))
    expected[[0, 1, 1, 3], [1, 0, 3, 1]] = 1, 1, 7, 7
    with pytest.warns(RuntimeWarning, match="e.csv: 1 of 4 clients have no row, .* is 2; they"):
        np.testing.assert_array_equal(edges_of(tmp_path, path), expected)


@pytest.mark.filterwarnings("ignore:.*the matrix is not symmetric")
def test_three_rows_that_are_pairs_or_a_matrix_are_refused(tmp_path):
    """A matrix is read if its rows cannot be pairs, because names repeat or are unknown."""
    path, three = tmp_path / "e.csv", CLIENT % 3
    for text in ("0,1,2\n1,2,1\n0,2,1\n", "0,1,2\n2,1,1\n2,0,1\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="are pairs with weights, or a matrix; write a"):
            edges_of(tmp_path, path, client=three)
    for matrix in ("0,1,2\n1,0,1\n2,1,0\n", "0,1,5\n2,0,3\n5,4,0\n", "1,1,1\n1,2,1\n0,1,1\n"):
        path.write_text(matrix)
        expected = np.array([row.split(",") for row in matrix.split()]).astype(float)
        np.fill_diagonal(expected, 0)
        np.testing.assert_array_equal(edges_of(tmp_path, path, client=three), expected)


def test_relations_of_divided_examples_are_of_numbers(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    np.save(tmp_path / "e.npy", ADJACENCY)
    options = {"partition": label_skew.iid(clients=4, seed=0), "seed": 0}
    made = custom(path=str(tmp_path / "own.npz"), edges=str(tmp_path / "e.npy"), **options)
    assert len(made.data.graph.senders) == 4


def test_damaged_files_of_relations_are_refused(tmp_path):
    torn = tmp_path / "torn.npy"
    np.save(torn, ADJACENCY)
    torn.write_bytes(torn.read_bytes()[:-8])
    np.savez(tmp_path / "two.npz", ADJACENCY, ADJACENCY)
    np.save(tmp_path / "object.npy", np.array([None]))
    (tmp_path / "words.csv").write_text("from,to,weight\n0,1,near\n")
    for name, why in (
        ("torn.npy", "torn.npy: the array cannot be read .*; write it with np.save"),
        ("object.npy", "object.npy: the array cannot be read .*; write it with np.save"),
        ("two.npz", "two.npz: the file has 2 arrays; give one"),
        ("words.csv", "words.csv: 'near' is no number, in row 0, .*; give weights as numbers"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            edges_of(tmp_path, tmp_path / name)
        assert "\n" not in str(caught.value)


def test_images_with_channels_first_are_turned(tmp_path):
    x = RNG.integers(0, 255, (32, 3, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=Y, client=CLIENT)
    made = custom(path=str(tmp_path / "own.npz"), images="channels_first", seed=0)
    assert made.sha256 == from_arrays(np.moveaxis(x, 1, -1), Y, CLIENT).sha256
    for name, value in (("images", "channels_first"), ("edges", "pairs.csv")):
        config = change(configuration.get_config("fedavg"), {f"data.{name}": value})
        with pytest.raises(ValueError, match=f"^data.{name}={value} is not read, since a fed"):
            graphfl_jax.run(config, made)


class Evil:
    def __reduce__(self):
        return print, ("executed",)


def test_folders_of_pfllib_run_no_code(tmp_path, capsys):
    folder = write_pfllib(tmp_path / "pfllib")
    np.savez(folder / "test" / "2.npz", data={"x": X, "y": Evil()})
    with pytest.raises(ValueError, match="2.npz: 'data' is not a .* builtins.print is refused"):
        custom(path=str(folder), seed=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("data", [{"x": X}, [1, 2], 3.0])
def test_folders_of_pfllib_without_x_and_y_are_refused(tmp_path, data):
    folder = write_pfllib(tmp_path / "pfllib")
    np.savez(folder / "test" / "2.npz", data=np.array(data, object) if data == 3.0 else data)
    with pytest.raises(ValueError, match="2.npz: 'data' is "):
        custom(path=str(folder), seed=0)


def test_damaged_folders_of_pfllib_are_refused(tmp_path):
    folder = write_pfllib(tmp_path / "pfllib")
    file = folder / "train" / "1.npz"
    whole = file.read_bytes()
    for damaged in (b"", whole[:200], whole[:-30]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="1.npz: 'data' is not a complete .*; write it"):
            custom(path=str(folder), seed=0)
    with zipfile.ZipFile(file, "w") as archive:  # no file of np.savez
        archive.writestr("data.npy", pickle.dumps({"x": X, "y": Y}))
    with pytest.raises(ValueError, match="1.npz: 'data' is not a complete pickle"):
        custom(path=str(folder), seed=0)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="1.npz is not a file, and config.json has num"):
        custom(path=str(folder), seed=0)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"x": [[1, 2], [3]], "y": [0, 1]}, "client '0' has train examples x of type object"),
        ({"x": ["ROMEO: I"] * 2, "y": ["a", "b"]}, ".* of type <U8 .*data.name=shakespeare$"),
        ({"x": [1.0, 2.0, 3.0]}, "LEAF"),
    ],
)
def test_folders_of_leaf_without_rows_of_numbers_are_refused(tmp_path, changes, why):
    folder = write_leaf(tmp_path / "leaf", **changes)
    with pytest.raises(ValueError, match=why):
        custom(path=str(folder), seed=0)


def test_users_of_leaf_must_have_both_splits(tmp_path):
    folder = write_leaf(tmp_path / "leaf")
    next((folder / "test").glob("all_data_1*")).unlink()
    with pytest.raises(ValueError, match="leaf: 2 users, such as '2', are in one .* -t sample"):
        custom(path=str(folder), seed=0)


class HuggingFace:
    """A data set with the two calls of `datasets` that the page has, where it is missing."""

    def __init__(self, columns):
        self.columns = columns

    def with_format(self, name):
        assert name == "numpy"
        return self

    def __getitem__(self, rows):
        return {name: np.asarray(column)[rows] for name, column in self.columns.items()}


def test_lines_for_other_libraries_give_federations():
    """The code on the page, with data sets in memory; those of `datasets` if it is there."""
    section = PAGE.read_text().split("### From other libraries")[1].split("\n## ")[0]
    torchvision, hugging_face, flower = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    images = RNG.integers(0, 255, (80, 8, 8, 3)).astype(np.uint8)
    label = np.arange(80) % 4
    columns = {"image": images.tolist(), "label": label, "writer_id": [*"abcdefgh"] * 10}
    try:
        from datasets import Dataset
    except ImportError:
        make = HuggingFace
    else:
        make = Dataset.from_dict
    pairs = list(zip(map(Image.fromarray, images), label.tolist(), strict=True))
    parts = [make({k: v[i::10] for k, v in columns.items()}) for i in range(10)]
    for code, names, clients in (
        (torchvision, {"dataset": pairs, "label_skew": label_skew}, 10),
        (hugging_face, {"dataset": make(columns)}, 8),
        (flower, {"partitioner": SimpleNamespace(load_partition=parts.__getitem__)}, 10),
    ):
        names |= {"np": np, "graphfl_jax": graphfl_jax}
        exec(code, names)
        made = names["federation"]
        assert len(made.clients) == clients and made.data.train.x.shape[2:] == (8, 8, 3)
        assert (
            sum(part.count.sum() for part in (made.data.train, made.data.evals["test"])) == 80
        )


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs")
def test_names_of_labels_are_in_results_files_and_predictions(tmp_path):
    names = np.array(["cat", "dog", "owl"])
    federation = from_arrays(X, names[Y], CLIENT, split=SPLIT)
    assert federation.sha256 == from_arrays(X, Y, CLIENT, split=SPLIT).sha256
    sizes = {"rounds": 2, "cohort_size": 4, "local_steps": 2, "batch_size": 3}
    config = change(configuration.get_config("fedavg"), sizes | {"model.hidden": (4,)})
    out = tmp_path / "run"
    graphfl_jax.run(config, federation, out=out, save_models=True)
    assert json.loads((out / "federation.json").read_text())["labels"] == names.tolist()
    predicted = graphfl_jax.load(out).predict("2", X)
    np.testing.assert_array_equal(predicted["label"], names[predicted["outputs"].argmax(1)])
