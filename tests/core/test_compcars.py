"""CompCars: the list, the image files and their cache, the relations, simulated images."""

import functools
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from graphfl_jax.data import compcars, drawn_cars, photographs

PER_CLIENT = 5  # images of a client in the folder `tree`; one of them is for test


def colour(number):
    return (20 + 50 * (number % PER_CLIENT), 8 * (number // PER_CLIENT), 128)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A data folder with a list and images, each of one colour: image k of client i is 5 i + k.

    The clients take turns in the list.
    """
    root = tmp_path_factory.mktemp("tree")
    lines = []
    for k in range(PER_CLIENT):
        for i, (year, viewpoint) in enumerate(compcars.CLIENTS):
            number = PER_CLIENT * i + k
            name = f"7/{i}/{year}/{number:014x}.jpg"
            path = root / "compcars" / "image" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (24, 20), colour(number)).save(path, quality=95)
            lines.append(f"./data/compcars/{name} {year}-{viewpoint} {k % 4 + 1}\n")
    (root / "compcars" / "car-images.txt").write_text("".join(lines))
    return root


@pytest.fixture(scope="module", autouse=True)
def drawn_once():
    """Images of one seed and size are drawn once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compcars, "_simulate", functools.cache(compcars._simulate))
        yield


@pytest.fixture
def root(tree, tmp_path):
    """A copy of `tree` that a test can change."""
    return shutil.copytree(tree, tmp_path / "root")


def load(root, **changes):
    settings = {"root": root, "source": "real", "image_size": 16, "seed": 0}
    return compcars.compcars(**settings | changes)


def edit(root, change):
    """Replaces the lines of the list by a function of them."""
    path = root / "compcars" / "car-images.txt"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def image_of(root, number):
    (path,) = (root / "compcars" / "image").rglob(f"{number:014x}.jpg")
    return path


def refuse_to_decode(monkeypatch):
    def refuse(file, size):
        raise AssertionError(f"{file} is decoded again")

    monkeypatch.setattr(photographs, "decode", refuse)


def examples(loaded, client):
    """All images and labels of a client, in the order of their red channel."""
    parts = (loaded.data.train, *loaded.data.evals.values())
    x = np.concatenate([part.x[client, : part.count[client]] for part in parts])
    y = np.concatenate([part.y[client, : part.count[client]] for part in parts])
    order = np.argsort(x[:, 0, 0, 0])
    return x[order], y[order]


def test_images_are_loaded_as_listed(root):
    loaded = load(root)
    x = loaded.data.train.x
    assert (x.shape, x.dtype) == ((30, 4, 16, 16, 3), np.uint8)
    assert (loaded.source, loaded.task, loaded.outputs) == ("real", "classification", 4)
    assert loaded.extent == "150 of 24151 images"
    views = [f"2009 view {viewpoint}" for viewpoint in (1, 2, 3, 4, 5)]
    assert loaded.clients[:6] == (*views, "2010 view 1")
    for client in range(30):
        x, y = examples(loaded, client)
        assert y.tolist() == [0, 1, 2, 3, 0]
        for k in range(PER_CLIENT):
            expected = colour(PER_CLIENT * client + k)
            np.testing.assert_allclose(x[k].mean((0, 1)), expected, atol=3)  # JPEG


def test_images_are_resized_to_squares(tmp_path):
    left = np.zeros((40, 80, 3), np.uint8)
    left[:, :40] = 200
    Image.fromarray(left).save(tmp_path / "half.png")
    pixels = photographs.decode(tmp_path / "half.png", 16)
    assert pixels.shape == (16, 16, 3)
    assert (pixels[:, :7] == 200).all() and not pixels[:, 9:].any()
    Image.fromarray(left[..., 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(photographs.decode(tmp_path / "grey.png", 16), pixels)


def test_images_are_decoded_once(root, monkeypatch):
    first = load(root)
    refuse_to_decode(monkeypatch)
    assert load(root, seed=1).sha256 == first.sha256
    with pytest.raises(AssertionError, match="decoded again"):
        load(root, image_size=17)


def test_changed_image_renews_the_cache(root):
    before = load(root)
    Image.new("RGB", (24, 20), (9, 9, 9)).save(image_of(root, 0))
    after = load(root)
    assert after.sha256 != before.sha256
    assert (examples(after, 0)[0] == 9).all((1, 2, 3)).sum() == 1


def test_changed_list_renews_the_cache(root):
    load(root)
    edit(root, lambda lines: lines[:-1])
    assert load(root).data.train.count[-1] == 3


def truncate(cache):
    os.truncate(cache, cache.stat().st_size - 1)


def overwrite(cache):
    with cache.open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        file.write(b"\0" * 5000)


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        overwrite,
        lambda cache: cache.write_bytes(b""),
        lambda cache: cache.write_bytes(b"PK\x03\x04" * 9),
        lambda cache: cache.with_suffix(".json").write_text("{"),
        lambda cache: cache.with_suffix(".json").unlink(),
        lambda cache: np.save(cache, np.zeros((150, 8, 8, 3), np.uint8)),
    ],
)
def test_damaged_cache_is_made_again(root, damage, monkeypatch):
    sha256 = load(root).sha256
    damage(root / "compcars" / "images-16.npy")
    assert load(root).sha256 == sha256
    refuse_to_decode(monkeypatch)
    assert load(root).sha256 == sha256


def test_cache_that_cannot_be_written_is_skipped(root, monkeypatch):
    def full_disk(file, array):
        file.write(b"partial")
        raise OSError("no space left")

    monkeypatch.setattr(photographs.np, "save", full_disk)
    assert load(root).data.train.x.any()
    names = sorted(path.name for path in (root / "compcars").iterdir())
    assert names == ["car-images.txt", "image"]


def test_a_mark_and_blank_last_lines_are_skipped(root):
    path = root / "compcars" / "car-images.txt"
    expected = compcars.read_list(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\n\r\n")
    assert compcars.read_list(path) == expected


@pytest.mark.parametrize(
    "line, named",
    [
        ("", "line 3 is not MAKE/MODEL"),
        ("7/1/2009/x.jpg 2009-1", "line 3 is not MAKE/MODEL"),
        ("2009/x.jpg 2009-1 1", "line 3 is not MAKE/MODEL"),
        ("7/../2009/x.jpg 2009-1 1", "line 3 is not MAKE/MODEL"),
        ("7/1/2009/x.jpg 2009-one 1", "line 3 is not MAKE/MODEL"),
        ("7/1/2009/\xff.jpg\0 2009-1 1", "line 3 is not MAKE/MODEL"),
        ("7/1/2009/x.jpg 2015-1 1", "line 3 has year 2015.*2009 to 2014"),
        ("7/1/2009/x.jpg 2009-6 1", "line 3 has viewpoint 6.*1 to 5"),
        ("7/1/2009/x.jpg 2009-1 0", "line 3 has type 0.*1 to 4"),
        ("7/1/2009/x.jpg 2009-1 5", "line 3 has type 5.*1 to 4"),
        (
            "other/7/0/2009/00000000000000.jpg 2010-1 1",
            "line 3 repeats 7/0/2009/00000000000000.jpg of line 1; remove one",
        ),
    ],
)
def test_wrong_lines_are_refused(root, line, named):
    edit(root, lambda lines: [*lines[:2], f"{line}\n", *lines[3:]])
    with pytest.raises(ValueError, match=f"car-images.txt: {named}") as caught:
        load(root)
    assert "\n" not in str(caught.value)


def test_list_without_some_clients_is_refused(root):
    edit(root, lambda lines: [line for line in lines if " 2010-" not in line])
    with pytest.raises(
        ValueError, match="5 of the 30 clients have no images, the first is 2010-1"
    ):
        load(root)


def test_missing_image_is_named(root):
    path = image_of(root, 7)
    path.unlink()
    with pytest.raises(
        FileNotFoundError, match=f"car-images.txt: line 62: no file {path}; put"
    ):
        load(root)


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def vector_graphics(path):
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


@pytest.mark.parametrize(
    "damage, named",
    [
        (halve, "truncated"),
        (lambda path: path.write_bytes(b""), "cannot identify"),
        (lambda path: path.write_bytes(b"<html>no such file</html>"), "cannot identify"),
        (vector_graphics, "cannot identify"),
        (lambda path: Image.new("1", (9000, 9000)).save(path, "PNG"), "9000 x 9000 pixels"),
        (
            lambda path: Image.new("1", (14000, 14000)).save(path, "PNG"),
            "DecompressionBombError",
        ),
    ],
)
def test_image_that_cannot_be_decoded_is_named(root, damage, named):
    path = image_of(root, 7)
    Image.effect_noise((200, 200), 60).save(path)
    damage(path)
    with pytest.raises(ValueError, match=f"{path}: the image cannot .*{named}") as caught:
        load(root)
    assert "\n" not in str(caught.value)
    assert not list((root / "compcars").glob("*images-16*"))


def test_other_list_is_read_at_its_path(root, tmp_path):
    other = shutil.move(root / "compcars" / "car-images.txt", tmp_path / "other.txt")
    loaded = load(root, source="auto", path=other)
    assert (loaded.source, loaded.extent) == ("real", "150 of 24151 images")
    with pytest.raises(FileNotFoundError, match="absent.txt' is not a file"):
        load(root, path="absent.txt")
    with pytest.raises(ValueError, match="other.txt' is not read with data.source='simulated'"):
        load(root, path=other, source="simulated")


def test_missing_files_are_errors_only_if_required(default_root):
    (default_root / "compcars").mkdir(parents=True)
    with pytest.warns(UserWarning, match="no file .*txt, so images are simulated; put"):
        assert load(default_root, source="auto").source == "simulated"
    for missing in ("no file .*car-images.txt", "no folder .*image"):
        with pytest.raises(FileNotFoundError, match=missing):
            load(default_root)
        (default_root / "compcars" / "car-images.txt").touch()
    with pytest.raises(FileNotFoundError, match="but there is compcars/car-images.txt; put"):
        load(default_root, source="auto")


@pytest.mark.parametrize(
    "rule, edges, first_degree, middle_degree",
    [
        ("nearby", 89, 3, 8),
        ("adjacent", 49, 2, 4),
        ("same", 135, 9, 9),
        ("either", 315, 17, 23),
    ],
)
def test_relations_follow_years_and_viewpoints(rule, edges, first_degree, middle_degree):
    graph = compcars.car_graph(rule)
    degrees = np.bincount(graph.receivers, minlength=30)
    assert len(graph.senders) == 2 * edges
    assert (degrees[0], degrees[12]) == (first_degree, middle_degree)  # 2009-1, 2011-3


def test_official_list_is_read_completely(data_root):
    path = data_root / "compcars" / "car-images.txt"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    photos = compcars.read_list(path)
    assert len(photos) == compcars.OFFICIAL == len({photo.file for photo in photos})
    types = np.bincount([photo.type for photo in photos])
    assert types.tolist() == [1163, 6136, 11656, 5196]
    sizes = np.bincount([compcars.CLIENTS.index(photo.client) for photo in photos])
    assert (len(sizes), sizes.min(), sizes.max()) == (30, 347, 1410)
    assert all(photo.file.split("/")[2] == str(photo.client[0]) for photo in photos)


@pytest.mark.release
def test_simulated_images_make_a_federation():
    loaded = compcars.compcars(root="", source="simulated", seed=0)
    assert (loaded.source, loaded.extent) == ("simulated", "")
    assert loaded.data.train.x.shape[2:] == (64, 64, 3)
    counts = loaded.data.train.count + loaded.data.evals["test"].count
    assert counts.min() >= 140 and counts.max() <= 180 and len(set(counts.tolist())) > 5
    for client in range(30):
        x, y = examples(loaded, client)
        assert np.ptp(np.bincount(y, minlength=4)) <= 1  # types are balanced
        assert x.std((0, 1, 2)).min() > 20


def test_simulated_images_depend_only_on_the_seed():
    first, again, other = (
        drawn_cars.draw(np.random.default_rng(seed), year=1, view=1, image_size=20)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0][:99], other[0][:99])


def outlines(x):
    """Absolute differences of neighbouring grey values, and a constant: [n, F]."""
    grey = x.astype(float).mean(-1) / 255
    parts = [np.abs(np.diff(grey, axis=axis)).reshape(len(x), -1) for axis in (1, 2)]
    return np.concatenate([*parts, np.ones((len(x), 1))], 1)


def ridge(x, y):
    """Weights of a linear classifier by least squares: [F, 4]."""
    return x.T @ np.linalg.solve(x @ x.T + 3 * np.eye(len(x)), np.eye(4)[y])


@pytest.mark.release
def test_best_models_of_simulated_images_depend_on_year_and_viewpoint():
    """A linear classifier of outlines, per client and for all clients; chance is 1/4."""
    grid = [(year, view) for year in range(6) for view in (0, 2, 4)]
    clients = []
    for year, view in grid:
        rng = np.random.default_rng([year, view])
        x, y = drawn_cars.draw(rng, year=year, view=view, image_size=32)
        clients.append((outlines(x), y))
    train = [(x[:110], y[:110]) for x, y in clients]
    test = [(x[110:], y[110:]) for x, y in clients]
    weights = [ridge(x, y) for x, y in train]
    # Accuracy of each client's classifier (column) on each client's images (row).
    accuracy = np.array([[((x @ w).argmax(1) == y).mean() for w in weights] for x, y in test])
    all_clients = ridge(*(np.concatenate(part) for part in zip(*train, strict=True)))
    shared = np.mean([((x @ all_clients).argmax(1) == y).mean() for x, y in test])

    year, view = np.array(grid).T
    years, views = abs(year[:, None] - year), abs(view[:, None] - view)
    same_client = accuracy[(years == 0) & (views == 0)].mean()
    next_year = accuracy[(years == 1) & (views == 0)].mean()
    later_years = accuracy[(years >= 3) & (views == 0)].mean()
    opposite_view = accuracy[(years == 0) & (views == 4)].mean()
    assert same_client > 0.65 and shared < 0.5
    assert 0.5 < next_year < same_client and later_years < 0.2
    assert opposite_view < next_year - 0.1
