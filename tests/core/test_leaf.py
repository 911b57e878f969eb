"""FEMNIST and Shakespeare: files of LEAF and of TensorFlow Federated, simulated data, LSTM."""

import json

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.configs import change, femnist, shakespeare
from graphfl_jax.core import Task
from graphfl_jax.data import leaf
from graphfl_jax.data.files import MissingFilesError
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.lstm import lstm

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(40, 28, 28)).astype(np.uint8)  # of all images
SPEECH = {"ann": ["To be,\tor not\n", "Ay."], "bob": ["Who's there?\n"]}


def examples(federation, client, part):
    split = federation.data.train if part == "train" else federation.data.evals[part]
    count = split.count[client]
    return split.x[client, :count], split.y[client, :count]


def write_json(root, name, parts):
    """{part: {file: {user: (x, y)}}} in LEAF's form."""
    for part, of_part in parts.items():
        folder = root / name / part
        folder.mkdir(parents=True)
        for file, users in of_part.items():
            data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
            counts = [len(y) for _, y in users.values()]
            content = {"users": [*users], "num_samples": counts, "user_data": data}
            (folder / f"{file}.json").write_text(json.dumps(content))


def images(rows):
    return [(row / 255).ravel().tolist() for row in PIXELS[rows]], [int(i) for i in rows]


def femnist_parts():
    """Three writers in two files; the second one has two training images."""
    rows = {"ann": range(12), "bob": range(12, 14), "eve": range(14, 26)}
    train = {user: images(np.array(of)) for user, of in rows.items()}
    test = {user: images(np.array([26 + i])) for i, user in enumerate(rows)}
    files = {"a": ("ann", "bob"), "b": ("eve",)}
    return {
        part: {file: {user: users[user] for user in of} for file, of in files.items()}
        for part, users in (("train", train), ("test", test))
    }


def load(name, root, **changes):
    return getattr(leaf, name)(**{"root": root, "source": "real", "seed": 0} | changes)


def test_files_of_leaf_give_the_images_of_the_writers(tmp_path):
    write_json(tmp_path, "femnist", femnist_parts())
    loaded = load("femnist", tmp_path)
    assert (loaded.clients, loaded.source) == (("ann", "eve"), "real")
    assert loaded.extent == "without 1 clients of fewer than 10 examples"
    assert (loaded.outputs, loaded.labels[36]) == (62, "a")
    for client, rows, test in ((0, range(12), 26), (1, range(14, 26), 28)):
        x, y = examples(loaded, client, "train")
        np.testing.assert_array_equal(x, PIXELS[list(rows), ..., None])
        assert y.tolist() == list(rows) and x.dtype == np.uint8
        assert examples(loaded, client, "test")[1].tolist() == [test]
    assert load("femnist", tmp_path, min_examples=2).clients == ("ann", "bob", "eve")


def test_the_first_clients_are_loaded_and_capped(tmp_path):
    write_json(tmp_path, "femnist", femnist_parts())
    (tmp_path / "femnist/train/b.json").write_text("torn")  # it is not read
    loaded = load("femnist", tmp_path, clients=1, cap=5)
    x, y = examples(loaded, 0, "train")
    assert loaded.clients == ("ann",) and len(set(y.tolist())) == 5
    np.testing.assert_array_equal(x, PIXELS[y, ..., None])
    assert loaded.extent == "the first 1 clients, at most 5 examples of a split per client"
    validated = load("femnist", tmp_path, clients=1, val_fraction=0.25)
    assert [len(examples(validated, 0, part)[1]) for part in ("train", "val")] == [9, 3]


def test_files_of_tensorflow_federated_are_read(tmp_path):
    write_json(tmp_path / "json", "femnist", femnist_parts())
    (tmp_path / "femnist").mkdir()
    for part, rows in (("train", range(12)), ("test", range(26, 27))):
        with h5py.File(tmp_path / f"femnist/fed_emnist_{part}.h5", "w") as file:
            group = file.create_group("examples/ann")
            group["pixels"] = (PIXELS[list(rows)] / 255).astype(np.float32)
            group["label"] = np.array(rows, np.int32)
    loaded = load("femnist", tmp_path)
    assert loaded.sha256 == load("femnist", tmp_path / "json", clients=1).sha256


def places(text):
    """Numbers of characters, one by one; unknown ones are spaces."""
    known = [leaf.CHARACTERS.find(character) for character in text]
    return [place if place >= 0 else leaf.CHARACTERS.index(" ") for place in known]


def pairs_of(lines):
    """Every character of lines, with the 80 before it."""
    padded = [" " * 80 + line for line in lines]
    ends = [(line, i) for line in padded for i in range(80, len(line))]
    return [line[i - 80 : i] for line, i in ends], [line[i] for line, i in ends]


def test_both_forms_of_shakespeare_are_the_characters_of_lines(tmp_path):
    users = {user: pairs_of(lines) for user, lines in SPEECH.items()}
    write_json(tmp_path / "json", "shakespeare", {p: {"a": users} for p in ("train", "test")})
    (tmp_path / "shakespeare").mkdir()
    for part in ("train", "test"):
        with h5py.File(tmp_path / f"shakespeare/shakespeare_{part}.h5", "w") as file:
            for user, lines in SPEECH.items():
                file[f"examples/{user}/snippets"] = [line.encode() for line in lines]
    loaded = load("shakespeare", tmp_path / "json")
    assert (len(leaf.CHARACTERS), loaded.outputs, loaded.clients) == (80, 80, ("ann", "bob"))
    x, y = examples(loaded, 0, "train")
    past, following = users["ann"]
    assert x.tolist() == list(map(places, past)) and y.tolist() == places(following)
    assert loaded.sha256 == load("shakespeare", tmp_path).sha256


SOUND = femnist_parts()["train"]["a"]["ann"]


@pytest.mark.parametrize(
    "users, named",
    [
        ("{", "the file has no users with x and y .JSONDecodeError"),
        ('{"users": ["ann"], "user_data": {}}', "no users with x and y .KeyError: 'ann'"),
        ("[1]", "no users with x and y .TypeError"),
        ({"ann": (SOUND[0], SOUND[1][1:])}, "user 'ann' are wrong .12 in x and 11 in y"),
        ({"ann": ([[0.5] * 783] * 12, SOUND[1])}, "are wrong .cannot reshape array"),
        ({"ann": ([[0.5] * 1568] * 12, SOUND[1])}, "24 images of 784 pixels for 12 labels"),
        ({"ann": ([[2.0] * 784] * 12, SOUND[1])}, "pixels outside of 0 to 1"),
        ({"ann": ([[0.5] * 784] * 12, ["a"] * 12)}, "could not convert string to float: 'a'"),
        ({"ann": (SOUND[0], [62] * 12)}, "client 'ann' has label 62 at its example 0"),
    ],
)
def test_foreign_files_of_leaf_are_refused(tmp_path, users, named):
    write_json(tmp_path, "femnist", femnist_parts())
    if isinstance(users, str):
        (tmp_path / "femnist/train/a.json").write_text(users)
    else:
        write_json(tmp_path / "new", "femnist", {"train": {"a": users}})
        (tmp_path / "new/femnist/train/a.json").replace(tmp_path / "femnist/train/a.json")
    with pytest.raises(ValueError, match=named) as caught:
        load("femnist", tmp_path, source="auto", clients=1)
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


def test_lines_of_another_length_are_refused(tmp_path):
    parts = {part: {"a": {"ann": (["short"] * 12, ["a"] * 12)}} for part in ("train", "test")}
    write_json(tmp_path, "shakespeare", parts)
    with pytest.raises(ValueError, match="'ann' are wrong .x without 80 characters, or y wit"):
        load("shakespeare", tmp_path)


def test_clients_that_do_not_fit_are_refused(tmp_path):
    parts = femnist_parts()
    write_json(tmp_path, "femnist", parts)
    with pytest.raises(ValueError, match="data.clients=3: femnist has 2 clients of at least d"):
        load("femnist", tmp_path, clients=3)
    with pytest.raises(ValueError, match="has 0 .*min_examples=13 .*smaller --config.data.m"):
        load("femnist", tmp_path, min_examples=13)
    with pytest.raises(ValueError, match="data.clients=1001 exceeds 1000 simulated clients; "):
        load("femnist", tmp_path, source="simulated", clients=1001)
    (tmp_path / "femnist/test/b.json").unlink()
    with pytest.raises(ValueError, match="client 'eve' has no test examples; .* -t sample"):
        load("femnist", tmp_path)
    (tmp_path / "femnist/train/c.json").write_bytes(
        (tmp_path / "femnist/train/a.json").read_bytes()
    )
    with pytest.raises(ValueError, match="user 'ann' is in two training files; remove one"):
        load("femnist", tmp_path)


@pytest.mark.parametrize(
    "content, named",
    [
        (None, "no examples of clients .*file signature not found"),
        ({"label": [1]}, "has no examples of clients .*pixels"),
        ({"label": [1] * 2, "pixels": np.zeros((1, 28, 28))}, "1 images of 784 pixels for 2"),
    ],
)
def test_foreign_hdf_files_are_refused(tmp_path, content, named):
    (tmp_path / "femnist").mkdir()
    for part in ("train", "test"):
        path = tmp_path / f"femnist/fed_emnist_{part}.h5"
        if content is None:
            path.write_bytes(b"none")
            continue
        with h5py.File(path, "w") as file:
            for name, values in content.items():
                file[f"examples/ann/{name}"] = values
    with pytest.raises(ValueError, match=named) as caught:
        load("femnist", tmp_path)
    assert str(caught.value).startswith(str(path.parent)) and "\n" not in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(MissingFilesError, match="no JSON file in .*shakespeare/train; put tra"):
        load("shakespeare", tmp_path)
    (tmp_path / "shakespeare").mkdir()
    h5py.File(tmp_path / "shakespeare/shakespeare_train.h5", "w").close()
    with pytest.raises(MissingFilesError, match="no file .*shakespeare_test.h5, but there is"):
        load("shakespeare", tmp_path)


def test_simulated_roles_follow_chains_of_their_own(tmp_path):
    loaded = load("shakespeare", tmp_path, source="simulated", clients=3)
    x, y = examples(loaded, 0, "train")
    assert loaded.source == "simulated" and len(loaded.clients) == 3
    np.testing.assert_array_equal(x[1:, -1], y[:-1])  # the next window ends with this letter
    tables = []
    for client in range(3):
        x, y = examples(loaded, client, "train")
        table = np.zeros((80, 80))
        np.add.at(table, (x[:, -1], y), 1)
        tables.append(table)
    assert not np.array_equal(tables[0], tables[1])


# ------------------------------------------------------------------------------- the LSTM


def lstm_in_numpy(params, x):
    """The equations, gate by gate, in the names of the cell's weights."""

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    body, head = params["body"], params["head"]
    sequence = body["Embed_0"]["embedding"][x]  # [T, E]
    for name in ("Layer_0", "Layer_1"):
        layer, states = body[name], []
        h = c = np.zeros(len(layer["hidden_kernel"]))
        for step in sequence:
            gates = step @ layer["input_kernel"] + h @ layer["hidden_kernel"] + layer["bias"]
            i, f, g, o = (gates[k * len(h) : (k + 1) * len(h)] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        sequence = np.array(states)
    return h @ head["kernel"] + head["bias"]


def test_the_lstm_follows_the_equations_and_reads_bytes_as_numbers():
    model = lstm(inputs=(6,), outputs=9, task=CLASSIFICATION, hidden=(4, 3), embedding=2)
    params = model.init(jax.random.key(0))
    x = RNG.integers(9, size=(5, 6))
    expected = [lstm_in_numpy(params, row) for row in x]
    apply = jax.jit(model.apply)
    for dtype in (jnp.uint8, jnp.float32):
        outputs = apply(params, jnp.array(x, dtype))
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    unknown = apply(params, jnp.full((5, 6), 9, jnp.uint8))
    assert np.isnan(unknown).all()  # so a test example with it is reported


def test_the_lstm_of_shakespeare_has_the_stated_size():
    model = lstm(inputs=(80,), outputs=80, task=CLASSIFICATION)
    cells = (8 + 256 + 1 + 256 + 256 + 1) * 4 * 256
    assert output_layer(model).size == 80 * 8 + cells + 257 * 80 == 817_872


@pytest.mark.parametrize(
    "inputs, hidden, named",
    [
        ((28, 28), (4,), r"examples have shape \[28, 28\]; set --config.model.name=mlp"),
        ((80,), (), r"model.hidden=\(\) must hold widths"),
        ((80,), (0,), r"model.hidden=\(0,\) must hold widths"),
    ],
)
def test_an_lstm_that_does_not_fit_is_refused(inputs, hidden, named):
    with pytest.raises(ValueError, match=named):
        lstm(inputs=inputs, outputs=80, task=Task(None, None, "", True), hidden=hidden)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file, model",
    [
        (femnist, {"model.name": "mlp", "model.hidden": (8,)}),
        (shakespeare, {"model.hidden": (4,)}),
    ],
)
def test_two_rounds_on_simulated_clients_learn(file, model):
    small = {"data.clients": 4, "cohort_size": 4, "data.cap": 20, "rounds": 2, "eval_every": 1}
    config = change(
        file.get_config("fedavg"),
        {"data.source": "simulated", "local_steps": 3, **small, **model},
    )
    result = graphfl_jax.run(config)
    assert result.results["dataset"]["source"] == "simulated"
    first, last = (row["train"]["loss"] for row in result.rows)
    assert last < first
