"""ChestX-ray14 and its score: files, patients, several labels per example, the AUC."""

import csv
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import graphfl_jax
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs import change, chest_xray
from graphfl_jax.configs.base import needing
from graphfl_jax.core import FederatedData
from graphfl_jax.data import chest_xray as data
from graphfl_jax.data import drawn_patterns, federation, label_skew, relations
from graphfl_jax.data.splits import RandomSplit
from graphfl_jax.evaluation import score_all_examples
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import MULTI_LABEL, areas, task_of
from graphfl_jax.runs import batch
from graphfl_jax.wire.attacks import backdoor, label_flip_wrong
from tests.commands import ROOT, launched
from tests.federations import small_config

LIST = "nih-chestxray/Data_Entry_2017.csv"
ARRAYS = "nih-chestxray/nih_chestxray_1000_64x64.npz"
COLUMNS = ("Image Index", "Finding Labels", "Follow-up #", "Patient ID")
LABELS = ("cough", "fever", "rash")


# -------------------------------------------------------------------------------------- the AUC


def pairwise(outputs, positive):
    """The share of pairs of a positive and a negative example in order; None if none."""
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, p in zip(outputs, positive, strict=True)
        for b, q in zip(outputs, positive, strict=True)
        if p and not q
    ]
    return np.mean(pairs) if pairs else None


def by_midranks(outputs, positive):
    """The same from the ranks: equal outputs have the mean of their ranks."""
    ranks = [np.mean(np.flatnonzero(np.sort(outputs) == output)) + 1 for output in outputs]
    n, m = positive.sum(), (~positive).sum()
    return (np.sum(np.array(ranks)[positive]) - n * (n + 1) / 2) / (n * m)


def drawn(seed, rows=23, labels=6):
    """Outputs with many ties, and labels; label 1 has no positive, label 2 no negative rows."""
    rng = np.random.default_rng(seed)
    outputs = np.round(rng.normal(size=(rows, labels)), 1).astype(np.float32)
    y = (rng.uniform(size=outputs.shape) < 0.4).astype(np.float32)
    outputs[:, 3] = 1.5  # all equal
    outputs[:4, 4] = [0.0, -0.0, 0.0, -0.0]
    y[:2, 4], y[2:4, 4], y[:, 1], y[:, 2] = 1, 0, 0, 1
    return outputs, y


@pytest.mark.parametrize("real", [23, 9])
def test_areas_are_shares_of_pairs_in_order(real):
    """Rows that do not count have any outputs, also such that are not finite."""
    outputs, y = (np.stack(part) for part in zip(*map(drawn, range(4)), strict=True))
    outputs[:, real:] = np.tile([np.inf, -np.inf, np.nan, 0, 1, -9], (23 - real, 1))
    rows = np.broadcast_to(np.arange(23) < real, (4, 23))
    actual, scored = jax.jit(jax.vmap(areas))(outputs, y, rows)
    for client in range(4):
        for label in range(6):
            values, positive = outputs[client, :real, label], y[client, :real, label] > 0
            expected = pairwise(values, positive)
            assert bool(scored[client, label]) == (expected is not None)
            np.testing.assert_allclose(actual[client, label], expected or 0.0, atol=1e-6)
            if expected is not None:
                np.testing.assert_allclose(by_midranks(values, positive), expected)
    np.testing.assert_array_equal(scored[:, 1:3], 0)
    np.testing.assert_allclose(actual[:, 3], 0.5, rtol=1e-6)


def test_areas_of_many_examples_are_exact():
    """10,000 positive rows above as many negative ones, but for one pair of equal outputs."""
    n = 10_000
    outputs = np.concatenate([np.arange(n) + n, np.arange(n)]).astype(np.float32)
    outputs[0] = n - 1
    y = np.arange(2 * n) < n
    area, _ = areas(outputs[:, None], np.float32(y)[:, None], np.ones(2 * n, bool))
    np.testing.assert_allclose(area, [1 - 0.5 / n**2], rtol=1e-6)


WEIGHTS = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


def some_examples(count=11, padding=3):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(count + padding, 4)).astype(np.float32)
    x[count:] = np.nan
    y = (rng.uniform(size=(count + padding, 3)) < 0.5).astype(np.float32)
    return Examples(jnp.asarray(x), jnp.asarray(y), jnp.int32(count))


@pytest.mark.parametrize("batch_size", [1, 4, 7, 14, 512])
def test_scores_do_not_depend_on_the_batch_size_or_padding(batch_size):
    examples = some_examples()
    predict = functools.partial(jnp.dot, b=WEIGHTS)
    score = (MULTI_LABEL.score, MULTI_LABEL.extra_metrics)
    actual, extra = score_all_examples(
        predict, lambda *rows: [part(*rows) for part in score], examples, batch_size
    )
    outputs = np.asarray(examples.x @ WEIGHTS)[:11]
    expected = [pairwise(outputs[:, i], np.asarray(examples.y)[:11, i]) for i in range(3)]
    np.testing.assert_allclose(extra["area"], expected, rtol=1e-6)
    np.testing.assert_allclose(actual, np.mean(expected), rtol=1e-6)


def test_outputs_that_are_not_finite_and_clients_without_labels_have_no_score():
    examples = some_examples()
    broken = examples._replace(x=examples.x.at[10].set(jnp.inf))
    for wrong in (broken, examples._replace(y=jnp.zeros_like(examples.y))):
        predict = functools.partial(jnp.dot, b=WEIGHTS)
        assert np.isnan(score_all_examples(predict, MULTI_LABEL.score, wrong, 4))


def test_the_loss_is_the_mean_binary_cross_entropy():
    outputs, y = drawn(0)
    p = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    expected = -np.mean(np.where(y > 0, np.log(p), np.log(1 - p)), axis=1)
    np.testing.assert_allclose(MULTI_LABEL.loss(outputs, y), expected, rtol=1e-5)


def test_labels_are_summarised_over_the_clients_that_have_them():
    task = task_of("multi-label classification", None, LABELS)
    area = np.array([[0.5, 0.0, 0.0], [1.0, 0.25, 0.0]], np.float32)
    scored = np.array([[1, 0, 0], [1, 1, 0]], np.float32)
    assert task.summarize({"area": area, "scored": scored}) == {
        "cough": {"auc": 0.75, "clients": 2},
        "fever": {"auc": 0.25, "clients": 1},
        "rash": {"auc": None, "clients": 0},
    }


# ---------------------------------------------------------------- federations of several labels


def several_labels(clients=3, shared=True):
    """Labels that depend on the inputs linearly; counts differ."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(30 + 3 * i, 4)).astype(np.float32) for i in range(clients)]
    y = [(rows @ WEIGHTS > 0.3).astype(int) for rows in x]
    made = federation.federate(
        [f"client {i}" for i in range(clients)],
        x=x,
        y=y,
        graph=relations.from_edges(clients, [(0, 1), (1, 2)]),
        task="multi-label classification",
        outputs=3,
        name="toy",
        source="generated",
        split=RandomSplit(0, 0.2),
    )
    if shared:
        made = federation.with_shared_split(
            made, "pooled", np.concatenate(x), np.concatenate(y)
        )
    return made._replace(labels=LABELS)


def test_names_of_labels_are_as_many_as_outputs():
    wrong = several_labels()._replace(labels=LABELS[:2])
    with pytest.raises(ValueError, match="^toy has 2 names of labels and 3 outputs; name each"):
        graphfl_jax.run(small_config("local"), wrong)


CONFIG = {"cohort_size": 3, "rounds": 4, "eval_every": 2, "hparams__client_lr": 0.5}
LEARNING = CONFIG | {"local_steps": 20, "hparams__ditto_lambda": 0.0}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run in a folder: (folder, result)."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    config = small_config("ditto", **LEARNING, checkpoint_every=2)
    return out, graphfl_jax.run(config, several_labels(), out=out)


@pytest.mark.slow
def test_a_run_reports_the_auc_of_all_labels(ran):
    out, result = ran
    results = json.loads((out / "results.json").read_text())
    assert (results["metric"], results["higher_is_better"]) == ("auc", True)
    assert results["errors"] is None and set(results["labels"]) == {"G", "L", "P"}
    assert list(results["labels"]["P"]) == list(LABELS)
    assert results["scores"]["final"]["P"]["mean"] > 0.7  # chance is 0.5
    # All clients have all labels, so the mean over labels is that over clients.
    by_label = [label["auc"] for label in results["labels"]["P"].values()]
    assert all(label["clients"] == 3 for label in results["labels"]["P"].values())
    np.testing.assert_allclose(
        np.mean(by_label), results["scores"]["final"]["P"]["mean"], rtol=1e-6
    )
    best, rows = results["scores"]["best_val"], result.rows
    means = [row["scores"]["val"]["P"].mean() for row in rows]
    assert best["round"] == rows[int(np.argmax(means))]["round"]


@pytest.mark.release
def test_a_resumed_run_has_the_same_scores(ran, tmp_path):
    whole, result = ran
    out = tmp_path / "again"
    config = small_config("ditto", **LEARNING | {"rounds": 2}, checkpoint_every=2)
    graphfl_jax.run(config, several_labels(), out=out)
    config = small_config("ditto", **LEARNING, checkpoint_every=2)
    again = graphfl_jax.run(config, several_labels(), out=out, resume=True)
    metrics = [folder / "metrics.jsonl" for folder in (whole, out)]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()
    for part in ("scores", "labels"):
        assert again.results[part] == result.results[part]


@pytest.mark.release
def test_batches_give_the_same_scores(ran):
    config, made = small_config("ditto", **LEARNING), several_labels()
    trials = [batch.Trial({}, 0), batch.Trial({"client_lr": 0.05}, 0)]
    first, _ = (
        outcome for _, outcome in batch.run_trials(config, {0: made}, trials, at_once=2)
    )
    assert_alike(first.results, ran[1].results)


@pytest.mark.release
def test_debugging_gives_the_same_scores():
    config = small_config("fedavg", **CONFIG | {"rounds": 1, "local_steps": 2})
    debugged, compiled = (
        graphfl_jax.run(config, several_labels(shared=False), debug=debug)
        for debug in (True, False)
    )
    assert_alike(debugged.results, compiled.results)


def assert_alike(actual, expected):
    """Scores are equal up to rounding, if no two outputs change their order."""
    for part in ("scores", "labels"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
            actual[part],
            expected[part],
        )


@pytest.mark.release
def test_a_shared_split_is_scored_like_copies_of_it(ran):
    """And stands in the results, beside the test scores."""
    made = several_labels(shared=False)
    pooled = several_labels().data.shared["pooled"]
    copies = jax.tree.map(lambda leaf: np.stack([leaf] * 3), pooled)
    evals = made.data.evals | {"pooled": copies}
    made = made._replace(data=made.data._replace(evals=evals))
    copied = graphfl_jax.run(small_config("ditto", **LEARNING), made)
    for point, scores in ran[1].final["pooled"].items():
        np.testing.assert_allclose(scores, copied.final["pooled"][point], atol=1e-6)
        summary = ran[1].results["scores"]["pooled"][point]
        np.testing.assert_array_equal(summary["per_client"], scores)
    lines = (ran[0] / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["pooled"] == ran[1].results["scores"]["pooled"]


@pytest.mark.release
def test_a_shared_split_can_be_chosen_and_left_out():
    made = several_labels()
    config = small_config("fedavg", **CONFIG | {"rounds": 2}, eval__splits=("pooled",))
    config = change(config, {"new_clients.fraction": 0.4, "cohort_size": 2})
    result = graphfl_jax.run(config, made)
    assert set(result.rows[0]["scores"]) == {"pooled"}
    assert len(result.rows[0]["scores"]["pooled"]["P"]) == 2
    assert set(result.final) == {"val", "test", "pooled"}
    assert len(result.results["new_clients"]["clients"]) == 1
    with pytest.raises(ValueError, match="has no split 'pooled'.*data.pooled_test$"):
        build_experiment(config, several_labels(shared=False))


@pytest.mark.parametrize("method", needing("labels"))
def test_methods_that_need_one_label_per_example_are_refused(method):
    message = (
        f"^algorithm.name='{method}' needs labels, one per example, and toy is a multi-label "
        "classification; choose another method$"
    )
    with pytest.raises(ValueError, match=message):
        build_experiment(small_config(method, cohort_size=3), several_labels())


def test_attacks_on_classes_are_refused():
    images = Examples(np.zeros((2, 3, 8, 8, 1), np.uint8), np.zeros((2, 3, 3)), np.zeros(2))
    with pytest.raises(ValueError, match="'backdoor' needs classes, and the task has none"):
        backdoor(train_data=images, classes=0)
    with pytest.raises(ValueError, match="'label_flip_wrong' needs classes, and the task has"):
        label_flip_wrong(train_data=images, classes=0)


def test_labels_that_give_no_score_are_refused():
    x, y = [np.zeros((20, 1))] * 2, [np.eye(2)[np.arange(20) % 2]] * 2
    rest = {"graph": relations.from_edges(2, []), "name": "toy", "source": "real"}
    rest |= {"task": "multi-label classification", "outputs": 2, "split": RandomSplit(0, 0.2)}
    federation.federate("ab", x=x, y=y, **rest)
    missing = "client 'b' has no label with positive and negative examples in (test|val), so it"
    with pytest.raises(ValueError, match=f"^toy: {missing} has no AUC; use fewer clients, or"):
        federation.federate("ab", x=x, y=[y[0], np.zeros((20, 2))], **rest)
    wrong = y[1].copy()
    wrong[7, 1] = 2
    with pytest.raises(
        ValueError,
        match="'b' has a label other than 0 and 1 at its example 7, counted from 0; give",
    ):
        federation.federate("ab", x=x, y=[y[0], wrong], **rest)


# ---------------------------------------------------------------------------------------- files


def image_of(number, side=16):
    """An image whose quarters have grey values of their own."""
    values = (np.arange(4) * 37 + number * 5) % 256
    return np.kron(values.reshape(2, 2), np.ones((side // 2, side // 2))).astype(np.uint8)


def entries(patients=48):
    """Rows of the list: two images per patient; every second patient has findings."""
    rows = []
    for patient in range(1, patients + 1):
        finding = data.FINDINGS[patient // 2 % 3]
        findings = [f"{finding}|Hernia", finding] if patient % 2 else [data.NONE] * 2
        rows += [(f"{patient:08}_{k:03}.png", findings[k], k, patient) for k in range(2)]
    return rows


def write_list(root, rows, columns=COLUMNS):
    with (root / LIST).open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def test_a_list_with_a_mark_and_blank_last_lines_is_read(tmp_path):
    file = tmp_path / LIST
    file.parent.mkdir()
    write_list(tmp_path, entries(2))
    expected = list(data._read_list(file))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes() + b"\r\n\r\n")
    assert list(data._read_list(file)) == expected and len(expected) == 4


@pytest.fixture
def root(tmp_path):
    """A data folder of the official form, with 96 images in two folders."""
    rows = entries()
    for number, (name, *_) in enumerate(rows):
        folder = tmp_path / f"nih-chestxray/images_{1 + number % 2:03}/images"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image_of(number)).save(folder / name)
    write_list(tmp_path, rows)
    return tmp_path


def picture(root, number):
    """The file of an image."""
    (path,) = (root / "nih-chestxray").rglob(entries()[number][0])
    return path


def load(root, clients=3, **changes):
    settings = {"source": "real", "seed": 0, "image_size": 8}
    settings |= {"partition": label_skew.iid(clients=clients, seed=0)}
    return data.chest_xray(root=root, **settings | changes)


def splits_of(made: federation.Federation):
    return {"train": made.data.train} | made.data.evals


def test_the_official_form_is_read(root):
    made = load(root, val_fraction=0.25)
    assert (made.source, made.extent) == ("real", "96 of 112120 images")
    assert (made.task, made.labels) == ("multi-label classification", data.FINDINGS)
    expected = {
        (np.kron(image_of(i)[::8, ::8], np.ones((4, 4))).astype(np.uint8).tobytes(), findings)
        for i, (_, findings, *_) in enumerate(entries())
    }
    actual = set()
    for part in splits_of(made).values():
        assert (part.x.shape[2:], part.x.dtype, part.y.dtype) == (
            (8, 8, 1),
            np.uint8,
            np.float32,
        )
        for client, count in enumerate(part.count):
            for j in range(count):
                named = np.array(data.FINDINGS)[part.y[client, j] == 1]
                findings = "|".join(named) or data.NONE
                actual.add((part.x[client, j].tobytes(), findings))
    assert actual == expected
    folder = root / "nih-chestxray"
    assert (folder / "images-8.npy").is_file()
    for part in ("images_001", "images_002"):
        for file in (folder / part / "images").iterdir():
            (folder / "images").mkdir(exist_ok=True)
            file.rename(folder / "images" / file.name)
    assert load(root, val_fraction=0.25).sha256 == made.sha256


DIVISIONS = {
    "iid": label_skew.iid,
    "dirichlet": functools.partial(label_skew.dirichlet, beta=0.3),
    "unbalanced": functools.partial(label_skew.dirichlet, beta=5.0, balanced=False),
}


def crowd():
    """700 images of 200 patients; two of three patients have the finding of their number."""
    rng = np.random.default_rng(0)
    patients = rng.integers(200, size=700)
    y = np.zeros((700, len(data.FINDINGS)), np.float32)
    y[np.arange(700), patients % 5] = (patients % 3 > 0) & (rng.uniform(size=700) < 0.7)
    return y, patients


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("cap", [0, 9])
def test_patients_are_in_one_split_of_one_client(division, cap):
    y, patients = crowd()
    partition = DIVISIONS[division](clients=4, seed=1)
    rows, splits = data._divide(y, patients, partition, cap, RandomSplit(1, 0.2))
    holders, used = {}, []
    for client, (rows_of_client, parts) in enumerate(zip(rows, splits, strict=True)):
        assert set(parts) == {"train", "val", "test"}
        assert sorted(np.concatenate(list(parts.values()))) == list(range(len(rows_of_client)))
        for part, places in parts.items():
            images = rows_of_client[places]
            assert not cap or 0 < len(images) <= cap
            for patient in patients[images]:
                assert holders.setdefault(patient, (client, part)) == (client, part)
            used += images.tolist()
        # Patients without findings are divided equally.
        well = set(patients[rows_of_client]) - set(patients[y.any(axis=1)])
        assert cap or len(well) in (16, 17, 18, 19)
    assert len(set(used)) == len(used)
    if not cap:
        assert len(used) == 700  # every image once
        tests = sum(part == "test" for _, part in holders.values())
        assert abs(tests / len(holders) - 0.2) < 0.04


def test_dirichlet_clients_have_different_findings():
    """Five findings are equally frequent; the share of a client's largest one."""
    (y, patients), shares = crowd(), {}
    for beta in (0.1, 1000.0):
        partition = label_skew.dirichlet(clients=4, beta=beta, seed=0)
        rows, _ = data._divide(y, patients, partition, 0, RandomSplit(0))
        counts = np.array([y[i].sum(axis=0) for i in rows])
        shares[beta] = (counts / counts.sum(axis=1, keepdims=True)).max(axis=1).mean()
    assert shares[0.1] > 0.5 > 0.4 > shares[1000.0]


def write_arrays(root, **changes):
    names, findings = zip(*((name, text) for name, text, *_ in entries()), strict=True)
    arrays = {
        "images": np.stack([image_of(i) for i in range(len(names))]),
        "labels": np.array([[f in text for f in data.FINDINGS] for text in findings]),
        "image_index": np.array(names),
        "class_names": np.array(data.FINDINGS),
    } | changes
    (root / ARRAYS).parent.mkdir(exist_ok=True)
    np.savez(
        root / ARRAYS, **{name: value for name, value in arrays.items() if value is not None}
    )


def test_arrays_are_the_same_data(root, tmp_path_factory):
    other = tmp_path_factory.mktemp("arrays")
    write_arrays(other)
    assert load(other).sha256 == load(root).sha256
    assert load(other).extent == "96 of 112120 images"


def test_the_pooled_split_has_all_test_images(root):
    made = load(root, pooled_test=True)
    test, pooled = made.data.evals["test"], made.data.shared["pooled"]
    assert (
        made.sha256 != load(root).sha256 and len(pooled.x) == pooled.count == test.count.sum()
    )
    separate = np.concatenate([test.x[i, :n] for i, n in enumerate(test.count)])
    np.testing.assert_array_equal(pooled.x, separate)


def test_the_laid_out_images_are_read(data_root):
    if not (data_root / ARRAYS).is_file():
        pytest.skip(f"no file {data_root / ARRAYS}")
    made = load(data_root, image_size=64, clients=8)
    with np.load(data_root / ARRAYS) as file:
        expected = file["labels"].sum(axis=0)
    parts = splits_of(made).values()
    assert sum(part.count.sum() for part in parts) == 1000
    assert made.extent == "1000 of 112120 images"
    assert sum(part.y.any(axis=2).sum() for part in parts) == 500  # as the file is described
    np.testing.assert_array_equal(sum(part.y.sum(axis=(0, 1)) for part in parts), expected)


def rename_column(root, name):
    write_list(root, entries(), [other if other != name else "Other" for other in COLUMNS])


def edit(root, row, column, value):
    rows = [list(entry) for entry in entries()]
    rows[row][column] = value
    write_list(root, rows)


def save(root, number, image):
    image.save(picture(root, number))


DAMAGES = {
    "column": (
        lambda root: rename_column(root, "Patient ID"),
        "no column 'Patient ID'; use the",
    ),
    "findings": (lambda root: rename_column(root, COLUMNS[1]), "no column 'Finding Labels'"),
    "label": (
        lambda root: edit(root, 3, 1, "Mass|Flu"),
        "line 5 has the finding 'Flu', which is unknown; use 'No Finding', or some of Atelec",
    ),
    "no label": (lambda root: edit(root, 3, 1, ""), "line 5 has the finding '', which"),
    "patient": (
        lambda root: edit(root, 3, 3, "x1"),
        "line 5 has patient 'x1', which is no num",
    ),
    "name": (lambda root: edit(root, 3, 0, "../a.png"), "line 5 has the image '../a.png'"),
    "repeated": (
        lambda root: edit(root, 3, 0, entries()[0][0]),
        "line 5 repeats 00000001_000.png of line 2; remove one",
    ),
    "empty": (lambda root: write_list(root, []), "the list has no images"),
    "bytes": (lambda root: (root / LIST).write_bytes(b"\x89PNG\r\n\x1a\n" * 9), "no column"),
    "long": (
        lambda root: (root / LIST).write_text('"' + "x" * 200_000),
        "the file is no list .field larger",
    ),
    "missing": (lambda root: picture(root, 4).unlink(), "line 6: no file 00000003_000.png in"),
    "colour": (
        lambda root: save(root, 4, Image.new("RGB", (16, 16), (9, 0, 0))),
        "the image is not grey with 8 bits .its mode is RGB.; replace",
    ),
    "deep": (lambda root: save(root, 4, Image.new("I;16", (16, 16))), "its mode is I;16"),
    "size": (
        lambda root: save(root, 4, Image.new("L", (12, 12))),
        "the image has 12 x 12 pixels, not 16 x 16 pixels; use",
    ),
    "wide": (
        lambda root: save(root, 0, Image.new("L", (16, 12))),
        "has 16 x 12 pixels, not 16",
    ),
    "damaged": (lambda root: picture(root, 4).write_bytes(b"no image"), "cannot be decoded"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_foreign_files_are_refused(root, damage):
    change, named = DAMAGES[damage]
    change(root)
    with pytest.raises((ValueError, FileNotFoundError), match=named) as caught:
        load(root, source="auto")
    message = str(caught.value)
    assert message.startswith(str(root)) and "; " in message and "\n" not in message
    assert not list((root / "nih-chestxray").glob("*images-8*"))


def test_files_in_colour_are_read_if_they_are_grey(root):
    made = load(root)
    save(root, 4, Image.fromarray(image_of(4)).convert("RGBA"))
    assert load(root).sha256 == made.sha256


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"labels": None}, "cannot be read .KeyError"),
        ({"images": np.zeros((96, 16, 16))}, "'images' is of type float64"),
        (
            {"images": np.zeros((96, 16, 8), np.uint8)},
            r"shape \(96, 16, 8\) and not grey squares",
        ),
        (
            {"class_names": np.array(data.FINDINGS[1:])},
            "'class_names' is not Atelectasis, Card",
        ),
        ({"labels": np.zeros((96, 13))}, r"'labels' of shape \(96, 13\)"),
        ({"labels": np.full((96, 14), 2)}, "is not 0 or 1 for each of 96 images"),
        ({"image_index": np.array(["x_0.png"] * 96)}, "'image_index' is not PATIENT_IMAGE.png"),
        ({"image_index": np.array(["1_0.png"])}, "'image_index' is not PATIENT_IMAGE.png"),
    ],
    ids=["missing", "floats", "wide", "classes", "columns", "kinds", "names", "few"],
)
def test_damaged_arrays_are_refused(tmp_path, changes, named):
    write_arrays(tmp_path, **changes)
    with pytest.raises(ValueError, match=named) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)


def test_images_are_not_enlarged(root, tmp_path_factory):
    arrays = tmp_path_factory.mktemp("arrays")
    write_arrays(arrays)
    with pytest.raises(ValueError, match="data.image_size=17 exceeds the 16 pixels of .*; set"):
        load(arrays, image_size=17)
    with pytest.raises(
        ValueError, match="has 16 x 16 pixels, not at least 17 x 17; use the off"
    ):
        load(root, image_size=17)


def test_missing_files_are_errors_only_if_required(default_root):
    with pytest.warns(UserWarning, match="no file .*2017.csv, so images are simulated; put"):
        assert load(default_root, source="auto").source == "simulated"
    (default_root / "nih-chestxray/images").mkdir(parents=True)
    for source in ("real", "auto"):
        with pytest.raises(
            FileNotFoundError, match="^chest_xray: no file .*Data_Entry_2017.csv"
        ):
            load(default_root, source=source)


# -------------------------------------------------------------------- simulated images and runs


def test_simulated_labels_can_be_recognised():
    """By the brightness where images with the label differ most from the others."""
    rng = np.random.default_rng(0)
    x, y, patients = drawn_patterns.draw_patients(rng, len(data.FINDINGS), 16)
    assert (len(x), len(set(patients))) == (len(y), drawn_patterns.PATIENTS)
    assert y.sum(0).min() > 10 and np.mean(y.any(axis=1)) > 0.3
    half = patients % 4 < 2
    x = x[..., 0] - x.mean(axis=(1, 2, 3))[:, None, None]
    shares = []
    for label in range(len(data.FINDINGS)):
        positive = y[:, label] > 0
        pattern = x[half & positive].mean(0) - x[half & ~positive].mean(0)
        scores = np.tensordot(x[~half], pattern, axes=2)
        shares.append(pairwise(scores, positive[~half]))
    assert np.mean(shares) > 0.85


def simulated(method="fedavg", **changes):
    config = chest_xray.get_config(method)
    return change(config, {"data.source": "simulated", "data.image_size": 16} | changes)


def test_configurations_build():
    config = simulated()
    made = load_federation(config)
    assert isinstance(made.data, FederatedData) and made.source == "simulated"
    for method in ("panacea", "ditto", "fedavg-finetune"):
        other = simulated(method)
        assert other.data == config.data
        experiment = build_experiment(other, made)
        params = jax.eval_shape(experiment.model.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((3, 16, 16, 1), np.uint8)
        assert jax.eval_shape(experiment.model.apply, params, x).shape == (3, 14)


TINY = [
    f"--config={ROOT}/configs/chest_xray.py",
    "--config.rounds=1",
    "--config.local_steps=1",
    "--config.data.image_size=8",
    "--config.model.name=mlp",
    "--config.model.hidden=5",
]


@pytest.mark.release
def test_a_run_states_the_data_and_prints_all_labels(tmp_path):
    words = [*TINY, "--config.data.source=simulated", "--config.data.pooled_test=True"]
    status, printed, errors = launched("run", *words, "--out=here", cwd=tmp_path)
    assert status == 0, errors
    assert "chest_xray, data: simulated" in printed and "higher is better" in printed
    assert "pooled" in printed
    for finding in data.FINDINGS:
        assert finding in printed


@pytest.mark.parametrize("damage", ["label", "missing", "colour"])
def test_bad_input_ends_a_run_in_one_line(root, tmp_path_factory, damage):
    DAMAGES[damage][0](root)
    cwd = tmp_path_factory.mktemp("cwd")
    status, printed, errors = launched("run", *TINY, f"--data_root={root}", cwd=cwd)
    assert status == 2 and not printed
    assert errors.startswith("error: ") and errors.count("\n") == 1, errors
    assert not list(cwd.iterdir()) and not list((root / "nih-chestxray").glob("*images-8*"))
