"""UCI HAR: official files, simulated features."""

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.configs import change
from graphfl_jax.configs import har as har_preset
from graphfl_jax.data import har
from graphfl_jax.data.files import MissingFilesError

RNG = np.random.default_rng(0)


def write(root, **changes):
    """Official files of three persons with five examples each; returns x, y and the persons."""
    written = []
    for part, persons in (("train", (1, 4)), ("test", (2,))):
        n = 5 * len(persons)
        arrays = {"X": RNG.uniform(-1, 1, (n, 561)).round(8), "y": np.arange(n) % 6 + 1}
        arrays["subject"] = np.repeat(persons, 5)
        written.append([*arrays.values()])
        folder = root / har.FOLDER / part
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in arrays.items():
            file = f"{name}_{part}"
            form = "%16.7e" if name == "X" else "%d"
            np.savetxt(folder / f"{file}.txt", changes.get(file, values), fmt=form)
    return map(np.concatenate, zip(*written, strict=True))


def test_files_give_the_examples_of_each_person(tmp_path):
    x, y, person = write(tmp_path)
    loaded = har.har(root=tmp_path, source="real", seed=0)
    assert loaded.clients == ("person 1", "person 2", "person 4")
    assert (loaded.source, loaded.extent) == ("real", "15 of 10299 examples")
    assert loaded.labels[5] == "LAYING"
    for i, number in enumerate((1, 2, 4)):
        parts = (loaded.data.train, loaded.data.evals["test"])
        rows = np.concatenate([part.x[i, : part.count[i]] for part in parts])
        labels = np.concatenate([part.y[i, : part.count[i]] for part in parts])
        place = [int(np.argmin(np.abs(x - row).sum(1))) for row in rows]
        assert sorted(place) == np.flatnonzero(person == number).tolist()
        np.testing.assert_allclose(rows, x[place], atol=1e-7)
        assert labels.tolist() == (y[place] - 1).tolist()


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"X_train": np.zeros((10, 7))}, "X_train.txt: the file has not 561 columns; use the"),
        ({"y_test": np.full(5, 7)}, "y_test.txt: .* one number from 1 to 6 for each of 5 exam"),
        ({"y_test": np.ones(4)}, "y_test.txt: the file has not one number"),
        ({"subject_train": np.full(10, 31)}, "subject_train.txt: .* from 1 to 30 for each"),
        ({"subject_train": None}, "subject_train.txt: the file is not a table of numbers"),
        ({"X_test": np.full((5, 561), np.nan)}, "person 2' has a NaN or infinite value in x"),
    ],
)
def test_foreign_files_are_refused(tmp_path, changes, named):
    write(tmp_path, **{name: value for name, value in changes.items() if value is not None})
    if "subject_train" in changes and changes["subject_train"] is None:
        (tmp_path / har.FOLDER / "train/subject_train.txt").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match=named) as caught:
        har.har(root=tmp_path, seed=0)
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / har.FOLDER / "test/y_test.txt").unlink()
    with pytest.raises(MissingFilesError, match="^har: no file .*test/y_test.txt, but there"):
        har.har(root=tmp_path, seed=0)


@pytest.mark.slow
def test_two_rounds_on_simulated_persons_learn():
    config = change(
        har_preset.get_config("fedavg"),
        {"data.source": "simulated", "model.hidden": (), "rounds": 2, "eval_every": 1},
    )
    result = graphfl_jax.run(config)
    assert result.results["dataset"]["source"] == "simulated"
    first, last = (row["train"]["loss"] for row in result.rows)
    assert last < first
