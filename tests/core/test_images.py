"""Image federations: files in the official formats, partitions, simulated images, runs."""

import gzip
import pickle
import re
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import polygamma

import graphfl_jax
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs import change, cifar10, cifar100, fashion_mnist
from graphfl_jax.configs import custom as custom_preset
from graphfl_jax.data import custom, drawn_patterns, image_sets, label_skew, splits
from graphfl_jax.data.photographs import resize
from graphfl_jax.data.splits import RandomSplit
from graphfl_jax.examples import Examples
from graphfl_jax.models.mlp import mlp
from graphfl_jax.runs import batch
from tests.commands import launched, launched_small, small_words

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def fewer_images(monkeypatch):
    """Simulated data sets of 600 and 200 images."""
    monkeypatch.setattr(drawn_patterns, "TRAIN", 600)
    monkeypatch.setattr(drawn_patterns, "TEST", 200)


# ------------------------------------------------------------------------ files as published


def idx(array):
    """An array of bytes in the IDX format, by the format's description."""
    head = struct.pack(">HBB", 0, 8, array.ndim)
    return head + b"".join(struct.pack(">I", size) for size in array.shape) + array.tobytes()


def random_images(n, shape):
    return RNG.integers(256, size=(n, *shape)).astype(np.uint8)


def red_green_blue(image):
    """An image [32, 32, 3] as the bytes of its three planes."""
    return b"".join(image[..., channel].tobytes() for channel in range(3))


def write_fashion(root, suffix=".gz", train=60, test=40, folder="fashion-mnist"):
    """Files of Fashion-MNIST or MNIST; returns the images and labels of both splits."""
    folder = root / folder
    folder.mkdir(parents=True, exist_ok=True)
    packed = gzip.compress if suffix else bytes
    written = []
    for part, n in (("train", train), ("t10k", test)):
        x, y = random_images(n, (28, 28)), (np.arange(n) % 10).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(packed(idx(x)))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(packed(idx(y)))
        written.append((x[..., None], y))
    return written


def superclass(label):
    """A superclass of CIFAR-100 in these files: every twentieth class is of the same one."""
    return int(label + 3) % 20


def write_cifar(root, classes, version):
    """Files of CIFAR, binary or for Python; returns the images and labels of both splits."""
    folder = {
        (10, "binary"): "cifar-10-batches-bin",
        (10, "python"): "cifar-10-batches-py",
        (100, "binary"): "cifar-100-binary",
        (100, "python"): "cifar-100-python",
    }[classes, version]
    (root / folder).mkdir(parents=True)
    batches = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    written = {}
    for name in (*batches, "test_batch" if classes == 10 else "test"):
        n = 20 if classes == 10 else 100
        x, y = random_images(n, (32, 32, 3)), np.arange(n) % classes
        coarse = [superclass(label) for label in y]
        rows = [red_green_blue(image) for image in x]
        if version == "binary":
            pairs = zip(coarse, y, strict=True)
            heads = [bytes(pair)[classes == 10 :] for pair in pairs]
            content = b"".join(head + row for head, row in zip(heads, rows, strict=True))
            (root / folder / f"{name}.bin").write_bytes(content)
        else:
            data = np.frombuffer(b"".join(rows), np.uint8).reshape(n, 3072)
            key = "labels" if classes == 10 else "fine_labels"
            labels = {key: y.tolist(), "coarse_labels": coarse}
            content = pickle.dumps({"data": data, **labels}, protocol=2)
            (root / folder / name).write_bytes(content)
        written.setdefault("test" if "test" in name else "train", []).append((x, y))
    return [
        tuple(map(np.concatenate, zip(*written[s], strict=True))) for s in ("train", "test")
    ]


def examples(federation, split):
    """All examples of a split, as a set of (image, label)."""
    part = federation.data.train if split == "train" else federation.data.evals[split]
    return {
        (part.x[i, j].tobytes(), int(part.y[i, j]))
        for i, count in enumerate(part.count)
        for j in range(count)
    }


def load(name, root, **changes):
    settings = {"root": root, "source": "real", "seed": 0}
    settings |= {"partition": label_skew.iid(clients=2, seed=0)}
    return getattr(image_sets, name)(**settings | changes)


@pytest.mark.parametrize(
    "name, write",
    [
        ("fashion_mnist", lambda root: write_fashion(root)),
        ("fashion_mnist", lambda root: write_fashion(root, suffix="")),
        ("mnist", lambda root: write_fashion(root, folder="mnist")),
        ("mnist", lambda root: write_fashion(root, suffix="", folder="MNIST/raw")),
        ("cifar10", lambda root: write_cifar(root, 10, "binary")),
        ("cifar10", lambda root: write_cifar(root, 10, "python")),
        ("cifar100", lambda root: write_cifar(root, 100, "binary")),
        ("cifar100", lambda root: write_cifar(root, 100, "python")),
    ],
)
def test_files_give_the_images_and_labels_that_were_written(tmp_path, name, write):
    written = write(tmp_path)
    loaded = load(name, tmp_path)
    assert (loaded.source, loaded.data.train.x.dtype) == ("real", np.uint8)
    train, test = (
        {(a.tobytes(), int(b)) for a, b in zip(x, y, strict=True)} for x, y in written
    )
    assert examples(loaded, "train") == train and examples(loaded, "test") == test
    official = 60000 if "mnist" in name else 50000
    assert (
        loaded.extent == f"{len(train)} of {official} training images, {len(test)} of 10000 "
        "test images"
    )


def test_official_files_have_the_published_means(data_root):
    """The means and deviations of CIFAR-10's training images, in common use."""
    loaded = load("cifar10", data_root)
    x = loaded.data.train.x.reshape(-1, 3)[::10] / 255
    np.testing.assert_allclose(x.mean(0), [0.4914, 0.4822, 0.4465], atol=1e-3)
    np.testing.assert_allclose(x.std(0), [0.2470, 0.2435, 0.2616], atol=1e-3)
    assert (loaded.data.train.count.sum(), loaded.extent) == (50000, "")


FASHION_IMAGES = "fashion-mnist/train-images-idx3-ubyte.gz"
FASHION_LABELS = "fashion-mnist/train-labels-idx1-ubyte.gz"
PICTURES = idx(random_images(60, (28, 28)))


@pytest.mark.parametrize(
    "file, content, named",
    [
        (FASHION_IMAGES, gzip.compress(PICTURES)[:5000], "damaged or truncated"),
        (FASHION_IMAGES, PICTURES, "damaged or truncated .Not a gzipped file"),
        (FASHION_IMAGES, gzip.compress(PICTURES[:-1]), "has 47039 bytes after .*not 47040"),
        (FASHION_IMAGES, gzip.compress(PICTURES + b"0"), "has more bytes after its head"),
        (FASHION_IMAGES, gzip.compress(PICTURES[:9]), "not an IDX file of bytes with 3 axes"),
        (FASHION_IMAGES, gzip.compress(b"a,b\n" * 9), "not an IDX file of bytes with 3 axes"),
        (
            FASHION_IMAGES,
            gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2**31, 28, 28)),
            "has axes of lengths .2147483648, 28, 28.",
        ),
        (
            FASHION_IMAGES,
            gzip.compress(idx(random_images(60, (8, 8)))),
            r"images have shape \[8, 8, 1\] and those of Fashion-MNIST have \[28, 28, 1\]",
        ),
        (
            FASHION_LABELS,
            gzip.compress(idx(np.zeros(59, np.uint8))),
            "has 59 labels and .* 60 im",
        ),
        (FASHION_LABELS, gzip.compress(PICTURES), "not an IDX file of bytes with 1 axes"),
        (
            FASHION_LABELS,
            gzip.compress(idx(np.full(60, 10, np.uint8))),
            "label 10 of example 0 is not in 0 to 9",
        ),
        (
            "cifar-10-batches-bin/data_batch_3.bin",
            b"0" * 4000,
            "4000 bytes, which are no whole",
        ),
        ("cifar-10-batches-bin/data_batch_3.bin", b"", "0 bytes, which are no whole records"),
        ("cifar-10-batches-bin/test_batch.bin", b"\n" + b"0" * 3072, "label 10 of example 0"),
        ("cifar-10-batches-py/test_batch", b"\x80\x02}", "not a complete pickle of arrays"),
        ("cifar-10-batches-py/test_batch", b"cos\nsystem\n(S'x'\ntR.", "os.system is refused"),
        ("cifar-10-batches-py/test_batch", pickle.dumps([1]), "'data' is of type object"),
        (
            "cifar-10-batches-py/test_batch",
            pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1]}),
            "'labels' is of type object",
        ),
        (
            "cifar-10-batches-py/test_batch",
            pickle.dumps({"data": np.zeros((2, 1024), np.uint8), "labels": [0, 1]}),
            r"shape \(2, 1024\) and not bytes of shape \(n, 3072\)",
        ),
    ],
    ids=lambda value: "bytes" if isinstance(value, bytes) else None,
)
def test_damaged_and_foreign_files_are_refused(tmp_path, file, content, named):
    name = "fashion_mnist" if "fashion" in file else "cifar10"
    if name == "fashion_mnist":
        write_fashion(tmp_path)
    else:
        write_cifar(tmp_path, 10, "binary" if "-bin" in file else "python")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=named) as caught:
        load(name, tmp_path, source="auto")
    message = str(caught.value)
    assert message.startswith(str(tmp_path)) and "; " in message and "\n" not in message


@pytest.mark.parametrize("batch", [1, 4])
def test_a_missing_file_beside_others_is_refused(default_root, batch):
    write_cifar(default_root, 10, "binary")
    (default_root / f"cifar-10-batches-bin/data_batch_{batch}.bin").unlink()
    missing = f"no file .*data_batch_{batch}.bin, but there is cifar-10-batches-bin/.*; put the"
    with pytest.raises(FileNotFoundError, match=missing):
        load("cifar10", default_root, source="auto")


@pytest.mark.parametrize(
    "name, there",
    [
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar10", "CIFAR10"),
        ("cifar100", "cifar100-images"),
        ("fashion_mnist", "Fashion_MNIST.zip"),
    ],
)
def test_files_of_another_form_are_not_taken_for_absent(default_root, name, there):
    (default_root / there).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=f"but there is {there}; .*source=simulated"):
        load(name, default_root, source="auto")
    if name == "cifar100":
        with pytest.warns(UserWarning, match="so images are simulated"):
            load("cifar10", default_root, source="auto")


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_a_data_folder_that_was_given_and_has_no_files_is_refused(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"{name}: no file .*; put"):
        load(name, tmp_path, source="auto")
    with pytest.raises(FileNotFoundError, match="and no data folder .*typo; put"):
        load(name, tmp_path / "typo", source="auto")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_folder_of_torchvision_is_read(tmp_path, suffix):
    write_fashion(tmp_path, suffix)
    official = load("fashion_mnist", tmp_path)
    (tmp_path / "FashionMNIST").mkdir()
    (tmp_path / "fashion-mnist").rename(tmp_path / "FashionMNIST/raw")
    loaded = load("fashion_mnist", tmp_path, source="auto")
    assert loaded.source == "real" and loaded.sha256 == official.sha256


@pytest.mark.parametrize("version", ["binary", "python"])
def test_superclasses_are_labels_or_what_is_divided(tmp_path, version):
    write_cifar(tmp_path, 100, version)

    def held(labels, partition_by, classes_per_client, clients):
        """The fine and the coarse labels of each client, by its images."""
        partition = label_skew.pathological(
            clients=clients, classes_per_client=classes_per_client, seed=0
        )
        levels = image_sets.Superclasses(labels, partition_by)
        loaded = load("cifar100", tmp_path, superclasses=levels, partition=partition)
        assert loaded.outputs == (100 if labels == "fine" else 20)
        kinds = []
        for i, count in enumerate(loaded.data.train.count):
            rows = [fine[image.tobytes()] for image in loaded.data.train.x[i, :count]]
            expected = rows if labels == "fine" else [superclass(label) for label in rows]
            assert loaded.data.train.y[i, :count].tolist() == expected
            kinds.append((set(rows), {superclass(label) for label in rows}))
        return kinds

    whole = load("cifar100", tmp_path).data.train
    fine = {
        whole.x[i, j].tobytes(): int(whole.y[i, j])
        for i, count in enumerate(whole.count)
        for j in range(count)
    }
    # One superclass of five classes each.
    for labels in ("fine", "coarse"):
        for client, (kinds, groups) in enumerate(held(labels, "coarse", 1, clients=20)):
            assert (len(kinds), groups) == (5, {client})
    # One class of every superclass each, and other classes for every client.
    every = held("coarse", "fine", 20, clients=5)
    assert all(len(kinds) == 20 == len(groups) for kinds, groups in every)
    assert len(set().union(*(kinds for kinds, _ in every))) == 100


def test_superclasses_that_are_none_are_refused(tmp_path):
    write_cifar(tmp_path, 100, "binary")
    path = tmp_path / "cifar-100-binary/train.bin"
    records = np.fromfile(path, np.uint8).reshape(-1, 3074)
    records[:, 0] = 7
    records.tofile(path)
    assert load("cifar100", tmp_path).outputs == 100  # fine labels do not need them
    levels = image_sets.Superclasses("coarse", "fine")
    with pytest.raises(
        ValueError, match="train.bin: the coarse labels are not superclasses of"
    ):
        load("cifar100", tmp_path, superclasses=levels)


def test_fashion_mnist_is_no_mnist(tmp_path, monkeypatch):
    """In the default folder: MNIST is simulated although there is Fashion-MNIST."""
    write_fashion(tmp_path)
    monkeypatch.setattr(image_sets.files, "cache_folder", lambda: tmp_path)
    with pytest.warns(
        UserWarning, match="^mnist: no file .*mnist/train-images-idx3-ubyte.gz, so"
    ):
        assert load("mnist", tmp_path, source="auto").source == "simulated"


# --------------------------------------------------------------------------------- partitions


LABELS = np.random.default_rng(1).permutation(np.arange(1200) % 10)


def counts_of(held, labels=LABELS, classes=10):
    """[N, classes], by counting one by one."""
    return np.array([[sum(labels[rows] == c) for c in range(classes)] for rows in held])


@pytest.mark.parametrize(
    "make",
    [
        label_skew.iid,
        label_skew.pathological,
        lambda **k: label_skew.pathological(assignment="shards", **k),
        label_skew.dirichlet,
        lambda **k: label_skew.dirichlet(balanced=False, **k),
        label_skew.quantity,
    ],
)
def test_a_partition_uses_every_example_once_and_depends_on_the_seed_only(make):
    first, again, other = (make(clients=10, seed=seed)(LABELS, 10) for seed in (0, 0, 1))
    assert sorted(np.concatenate(first)) == list(range(len(LABELS)))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_iid_clients_have_equal_sizes_and_the_classes_of_all():
    """Three of seven clients have 172 of 1,200. A share of 0.1 of 171 deviates by 0.023."""
    held = label_skew.iid(clients=7, seed=0)(LABELS, 10)
    assert sorted(map(len, held)) == [171] * 4 + [172] * 3
    shares = counts_of(held) / np.array([[len(rows)] for rows in held])
    assert np.abs(shares - 0.1).max() < 4 * 0.023


def test_clustered_clients_share_classes_in_equal_parts():
    held = label_skew.pathological(clients=10, classes_per_client=2, seed=0)(LABELS, 10)
    counts = counts_of(held)
    for i in range(10):
        expected = np.zeros(10)
        expected[[2 * (i % 5), 2 * (i % 5) + 1]] = 60  # half of 120
        np.testing.assert_array_equal(counts[i], expected)


def test_shards_have_equal_sizes_and_few_classes():
    """Twenty shards of 60; a class has 120, so no shard includes a border."""
    make = label_skew.pathological(
        clients=10, classes_per_client=2, assignment="shards", seed=0
    )
    counts = counts_of(make(LABELS, 10))
    assert (counts.sum(1) == 120).all() and set(np.unique(counts)) <= {0, 60, 120}
    pairs = {tuple(np.flatnonzero(row)) for row in counts}
    assert len(pairs) > 5  # the clusters would be five


def test_balanced_dirichlet_has_equal_sizes_and_skew_by_beta():
    by_beta = {}
    for beta in (0.05, 0.5, 1000.0):
        counts = counts_of(label_skew.dirichlet(clients=10, beta=beta, seed=0)(LABELS, 10))
        assert (counts.sum(1) == 120).all() and (counts.sum(0) == 120).all()
        by_beta[beta] = counts.max(1).mean() / 120  # share of the largest class
    assert by_beta[0.05] > 0.5 > by_beta[0.5] > 0.25 > by_beta[1000.0]


def test_balanced_dirichlet_keeps_the_odds_ratio_of_the_drawn_shares():
    """Factors of rows and columns cancel in t (m - t)^-1 / ((m - t) t^-1), which is drawn.

    The logit of a share of Beta(beta, beta) has the variance 2 psi'(beta), so that the
    difference of those of two clients, 2 log(t / (m - t)), has 4 psi'(beta).
    """
    labels, m, beta = np.arange(20000) % 2, 10000, 5.0
    logits = []
    for seed in range(1000):
        rows, _ = label_skew.dirichlet(clients=2, beta=beta, seed=seed)(labels, 2)
        t = np.sum(labels[rows])
        logits.append(2 * np.log(t / (m - t)))
    # The logit is nearly normal: its variance over 1,000 draws has an error of 4.5 %.
    np.testing.assert_allclose(np.var(logits), 4 * polygamma(1, beta), rtol=0.15)


def test_balanced_dirichlet_with_a_large_beta_is_the_whole_for_every_client():
    skewed = np.repeat(np.arange(4), [100, 200, 300, 600])
    held = label_skew.dirichlet(clients=8, beta=1e8, seed=0)(skewed, 4)
    exact = np.array([100, 200, 300, 600]) / 8
    assert np.abs(counts_of(held, skewed, 4) - exact).max() < 1


@pytest.mark.parametrize("clients", [10, 20])
def test_balanced_dirichlet_clients_hold_fewer_classes_with_a_smaller_beta(clients):
    classes = []
    for beta in (0.001, 0.01, 0.1, 1.0):
        counts = [
            counts_of(label_skew.dirichlet(clients=clients, beta=beta, seed=seed)(LABELS, 10))
            for seed in range(5)
        ]
        classes.append(np.mean(np.array(counts) > 0))
    assert (np.diff(classes) > 0).all()


def test_balanced_dirichlet_treats_all_clients_alike():
    """The distance of a client's shares from the whole does not depend on its number."""
    away = [
        np.abs(counts_of(label_skew.dirichlet(clients=5, beta=1.0, seed=seed)(LABELS, 10)) - 24)
        for seed in range(100)
    ]
    away = np.mean(away, axis=2)  # [100, 5]
    error = away.std() / np.sqrt(len(away))
    assert np.abs(away.mean(axis=0) - away.mean()).max() < 4 * error


def test_unbalanced_dirichlet_shares_have_the_moments_of_the_distribution():
    """A share of Dir(beta 1_N) has mean 1 / N and variance (N - 1) / (N^2 (N beta + 1))."""
    labels, n, beta = np.arange(40000) % 400, 10, 0.5
    counts = np.stack(
        [
            np.bincount(labels[rows], minlength=400)
            for rows in label_skew.dirichlet(clients=n, beta=beta, balanced=False, seed=0)(
                labels, 400
            )
        ]
    )
    assert (counts.sum(0) == 100).all()
    variance = (n - 1) / (n**2 * (n * beta + 1))
    # 4,000 shares, whose squared deviations have a deviation of about twice the variance.
    assert abs((counts / 100).var() / variance - 1) < 0.15
    assert len({int(row.sum()) for row in counts}) > 1


def test_quantity_skew_has_the_moments_of_the_distribution_and_the_classes_of_all(monkeypatch):
    """A share of Dir(beta 1_N) has mean 1 / N and variance (N - 1) / (N^2 (N beta + 1))."""
    monkeypatch.setattr(label_skew, "ENOUGH", 0)  # without it, small shares are drawn again
    n, beta = 10, 2.0
    made = [label_skew.quantity(clients=n, beta=beta, seed=seed) for seed in range(400)]
    sizes = np.array([[len(rows) for rows in make(LABELS, 10)] for make in made])
    assert (sizes.sum(1) == len(LABELS)).all()
    variance = (n - 1) / (n**2 * (n * beta + 1))
    # 4,000 shares, whose squared deviations have a deviation of about twice the variance.
    assert abs((sizes / len(LABELS)).var() / variance - 1) < 0.15
    largest = max(made[0](LABELS, 10), key=len)
    shares = np.bincount(LABELS[largest], minlength=10) / len(largest)
    assert np.abs(shares - 0.1).max() < 4 * np.sqrt(0.09 / len(largest))


def test_other_splits_have_the_class_proportions_of_training():
    split = np.where(np.arange(1200) < 1000, "train", "test")
    partition = label_skew.dirichlet(clients=5, beta=0.3, balanced=False, seed=2)
    held = label_skew.divide(partition, LABELS, 10, split=split, seed=2)
    assert sorted(np.concatenate(held)) == list(range(1200))
    train, test = (
        counts_of([rows[split[rows] == part] for rows in held]) for part in ("train", "test")
    )
    expected = train / train.sum(0) * test.sum(0)  # [5, 10]
    assert np.abs(test - expected).max() <= 1


def test_examples_are_drawn_from_the_whole_before_they_are_divided():
    """The partition divides the sample as it would a whole; the test split stays whole."""
    split = np.where(np.arange(1200) < 1000, "train", "test")
    partition = label_skew.dirichlet(clients=5, beta=0.3, balanced=False, seed=2)
    held = label_skew.divide(partition, LABELS, 10, split=split, examples=400, seed=2)
    drawn = np.concatenate(held)
    train = drawn[split[drawn] == "train"]
    assert len(train) == len(set(train)) == 400
    assert np.abs(np.bincount(LABELS[train], minlength=10) - 40).max() < 20
    assert sorted(drawn[split[drawn] == "test"]) == list(range(1000, 1200))
    sizes = [np.sum(split[rows] == "train") for rows in held]
    assert sizes == [len(rows) for rows in partition(LABELS[train], 10)]
    assert max(sizes) - min(sizes) > 20
    other = label_skew.divide(partition, LABELS, 10, split=split, examples=400, seed=3)
    assert set(np.concatenate(other)) != set(drawn)
    everything = label_skew.divide(partition, LABELS, 10, split=split, examples=5000, seed=2)
    assert sorted(np.concatenate(everything)) == list(range(1200))


def test_cap_keeps_examples_of_the_client():
    split = np.where(np.arange(1200) < 1000, "train", "test")
    settings = {"split": split, "seed": 0}
    partition = label_skew.pathological(clients=10, seed=0)
    whole = label_skew.divide(partition, LABELS, 10, **settings)
    capped = label_skew.divide(partition, LABELS, 10, cap=15, **settings)
    for rows, all_rows in zip(capped, whole, strict=True):
        assert set(rows) < set(all_rows)
        assert [sum(split[rows] == part) for part in ("train", "test")] == [15, 15]


FEW = np.arange(12) % 10


@pytest.mark.parametrize(
    "make, settings, labels, named",
    [
        ("pathological", {"classes_per_client": 11}, LABELS, "=11 exceeds the 10 classes"),
        (
            "pathological",
            {"classes_per_client": 3},
            LABELS,
            "=3 does not divide the 10 classes",
        ),
        ("pathological", {"clients": 4}, LABELS, "data.clients=4 leaves classes without"),
        (
            "pathological",
            {"assignment": "shards"},
            FEW,
            "10 with 2 shards each need 20 examples, and there are 12",
        ),
        ("pathological", {"clients": 20}, FEW, "clients=20: client .* would have no training"),
        (
            "iid",
            {"clients": 14},
            FEW,
            "clients=14: client 12, client 13 would have no training",
        ),
        ("iid", {"clients": 99}, FEW, "client 12, client 13, client 14 and 84 others would"),
        (
            "dirichlet",
            {"clients": 14},
            FEW,
            "data.clients=14: client 0, .* would have no train",
        ),
        (
            "dirichlet",
            {"balanced": False, "beta": 0.001, "clients": 30},
            LABELS,
            "data.beta=0.001 leaves client .* others with fewer than 10 of the 1200 examples",
        ),
        (
            "quantity",
            {"beta": 0.001, "clients": 30},
            LABELS,
            "data.beta=0.001 leaves client .* or --config.data.partition=iid",
        ),
    ],
)
def test_partitions_that_do_not_fit_are_refused(monkeypatch, make, settings, labels, named):
    monkeypatch.setattr(label_skew, "DRAWS", 3)
    with pytest.raises(ValueError, match=named) as caught:
        label_skew.divide(getattr(label_skew, make)(seed=0, **settings), labels, 10, seed=0)
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


def test_clients_without_test_examples_are_refused():
    split = np.where(np.arange(1200) < 1195, "train", "test")
    with pytest.raises(ValueError, match="would have no test examples in their class prop"):
        label_skew.divide(label_skew.iid(clients=10, seed=0), LABELS, 10, split=split, seed=0)


# ------------------------------------------------------------------------------ own data


def test_own_examples_without_clients_are_divided(tmp_path):
    x = np.arange(1200)[:, None]
    split = np.where(np.arange(1200) % 4, "train", "test")
    partition = label_skew.pathological(clients=5, seed=3)
    made = custom.from_arrays(x, LABELS, partition=partition, split=split, cap=100, seed=3)
    assert made.clients == ("0", "1", "2", "3", "4") and made.source == "own"
    for part, name in ((made.data.train, "train"), (made.data.evals["test"], "test")):
        for i in range(5):
            rows = part.x[i, : part.count[i], 0].astype(int)
            assert (split[rows] == name).all()
            assert set(LABELS[rows]) == {2 * i, 2 * i + 1}
    assert made.data.train.count.max() == 100
    np.savez(tmp_path / "own.npz", x=x, y=LABELS)
    config = change(
        custom_preset.get_config("fedavg"),
        {"data.path": str(tmp_path / "own.npz"), "data.partition": "dirichlet"},
    )
    config = change(config, {"data.clients": 6, "data.beta": 0.2})
    assert load_federation(config).data.train.count.tolist() == [160] * 6


@pytest.mark.parametrize(
    "changes, named",
    [
        (
            {"partition": None},
            "there is no array 'client'; .*data.partition to iid or patholog",
        ),
        ({"client": LABELS}, "and the array 'client' does so too; leave"),
        ({"y": LABELS / 3}, "y holds targets; .* 'client', or set .*task=classification"),
        ({"split": ["train", "none"] * 600}, "split has 'none' at example 1; use train"),
    ],
)
def test_own_examples_that_cannot_be_divided_are_refused(changes, named):
    partition = label_skew.iid(clients=3, seed=0)
    arrays = {"x": LABELS[:, None], "y": LABELS, "partition": partition} | changes
    with pytest.raises(ValueError, match=f"^the arrays: .*{named}"):
        custom.from_arrays(**arrays)


# --------------------------------------------------------------------- simulated images, runs


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10", "cifar100"])
def test_without_files_images_are_simulated(default_root, name):
    with pytest.warns(UserWarning, match=f"{name}: no file .*, so images are simulated; put"):
        loaded = load(name, default_root, source="auto")
    assert (loaded.source, loaded.extent) == ("simulated", "")
    drawn = load(name, default_root, source="simulated")
    assert drawn.sha256 == loaded.sha256
    assert load(name, default_root, source="simulated", generator_seed=1).sha256 != drawn.sha256
    with pytest.raises(FileNotFoundError, match="no file .*data.source=simulated"):
        load(name, default_root)


def test_classes_of_simulated_images_can_be_recognised():
    """By the nearest class mean of other images."""
    x, y = drawn_patterns.draw(np.random.default_rng(0), classes=10, shape=(28, 28, 1))
    x = x.reshape(len(x), -1) - x.reshape(len(x), -1).mean(1, keepdims=True)
    means = np.stack([x[:600][y[:600] == label].mean(0) for label in range(10)])
    distances = np.square(x[600:, None] - means).sum(-1)
    assert np.mean(distances.argmin(1) == y[600:]) > 0.8
    assert (np.bincount(y[:600]) == 60).all() and (np.bincount(y[600:]) == 20).all()


def test_each_example_of_a_client_is_in_exactly_one_split():
    split = np.array(["train"] * 10 + ["test"] * 3)
    parts = splits.split_training(split, 0, RandomSplit(0, 0.2))
    assert {name: len(rows) for name, rows in parts.items()} == {
        "train": 8,
        "val": 2,
        "test": 3,
    }
    assert sorted(np.concatenate(list(parts.values()))) == list(range(13))
    assert sorted(parts["test"]) == [10, 11, 12]


@pytest.mark.parametrize("test, sizes", [("official", (48, 12, 20)), ("own", (36, 12, 12))])
def test_validation_and_test_examples(tmp_path, test, sizes):
    """Of 60 training examples and 20 official test examples of a client."""
    partition = label_skew.pathological(clients=10, seed=0)
    settings = {"source": "simulated", "partition": partition, "val_fraction": 0.2}
    loaded = load("cifar10", tmp_path, test=test, **settings)
    parts = {"train": loaded.data.train} | loaded.data.evals
    actual = tuple(parts[name].count.tolist() for name in ("train", "val", "test"))
    assert actual == tuple([size] * 10 for size in sizes)
    for i in range(10):
        labels = {int(y) for part in parts.values() for y in part.y[i, : part.count[i]]}
        assert labels == {2 * (i % 5), 2 * (i % 5) + 1}


def test_federations_of_different_sizes_are_stacked():
    config = change(
        fashion_mnist.get_config(),
        {"data.source": "simulated", "data.partition": "dirichlet", "data.graph": "own"},
    )
    config = change(config, {"data.balanced": False})
    loaded = [load_federation(change(config, {"seed": seed})).data for seed in (0, 1)]
    assert loaded[0].train.x.shape != loaded[1].train.x.shape
    for i, count in enumerate((3, 5)):  # of a split that all clients share
        pooled = Examples(np.ones((count, 2)), np.ones(count, np.int32), np.int32(count))
        loaded[i] = loaded[i]._replace(shared={"pooled": pooled})
    stacked = batch._stack(loaded)
    pooled = stacked.shared["pooled"]
    np.testing.assert_array_equal(pooled.y, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert pooled.x.shape == (2, 5, 2) and pooled.count.tolist() == [3, 5]
    for i, data in enumerate(loaded):
        for client, count in enumerate(data.train.count):
            np.testing.assert_array_equal(
                stacked.train.x[i, client, :count], data.train.x[client, :count]
            )
            assert not stacked.train.x[i, client, count:].any()


@pytest.mark.parametrize("file", [fashion_mnist, cifar10, cifar100])
def test_configurations_build(file):
    config = change(file.get_config(), {"data.source": "simulated"})
    federation = load_federation(config)
    for method in ("panacea", "ditto", "fedavg-finetune"):
        other = change(file.get_config(method), {"data.source": "simulated"})
        assert other.data == config.data
        build_experiment(other, federation)
    with pytest.raises(ValueError, match="cohort_size=10 exceeds the 5 clients"):
        few = change(config, {"data.clients": 5})
        build_experiment(few, load_federation(few))


def test_perceptrons_scale_bytes():
    model = mlp(inputs=(2, 2, 1), outputs=3, task=None)
    params = model.init(jax.random.key(0))
    pixels = jnp.array([[0, 255], [255, 0]], jnp.uint8)[None, ..., None]
    floats = jnp.array([[-1.0, 1.0], [1.0, -1.0]])[None, ..., None]
    np.testing.assert_array_equal(model.apply(params, pixels), model.apply(params, floats))


IMAGES = ["--config.data.source=simulated", "--config.data.cap=20"]


@pytest.mark.release
def test_a_run_states_that_images_are_simulated(tmp_path):
    words = ["--config.model.name=mlp", "--config.model.hidden=5", *IMAGES, "--out=here"]
    status, printed, errors = launched_small(
        "run", *words, cwd=tmp_path, file="fashion_mnist.py"
    )
    assert status == 0, errors
    assert "data: simulated" in printed and "at most 20 images of a split" in printed


def test_the_figure_shows_the_classes_of_clients(tmp_path):
    words = [*small_words("cifar10.py")[:1], *IMAGES, "--figure=partition", "--out=here"]
    status, _, errors = launched("figures", *words, cwd=tmp_path)
    assert status == 0, errors
    assert (tmp_path / "here/partition.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "here/partition.md").read_text()
    assert "| client 9 | simulated | 20 | 20 | 2 |" in page


@pytest.mark.parametrize(
    "words, message",
    [
        (["--config.data.partition=random"], "data.partition='random' is unknown; choose from"),
        (["--config.data.beta=1"], "data.beta=1 is not read .* data.partition=dirichlet"),
        (
            ["--config.data.partition=dirichlet", "--config.data.beta=0"],
            "data.beta=0.0 must be finite and at least 0.001",
        ),
        (["--config.data.classes_per_client=11"], "exceeds the 10 classes"),
        (["--config.data.clients=4"], "data.clients=4 leaves classes without a client"),
        (["--config.model.name=resnet18"], r"takes images of shape \[H, W, 3\], but examples"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(tmp_path, words, message):
    words = [*small_words("fashion_mnist.py")[:1], "--config.data.source=simulated", *words]
    status, printed, errors = launched("run", *words, cwd=tmp_path)
    assert status == 2 and not printed
    assert errors.startswith("error: ") and errors.count("\n") == 1, errors
    assert re.search(message, errors), errors
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------ sizes, balanced tests


def test_images_are_reduced_to_means_where_the_factor_is_whole():
    images = random_images(3, (8, 12, 3))
    actual = resize(images, 4)
    for row in range(4):
        for column in range(4):
            part = images[:, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            expected = np.floor(part.mean(axis=(1, 2)) + 0.5)
            np.testing.assert_array_equal(actual[:, row, column], expected)
    assert actual.dtype == np.uint8
    np.testing.assert_array_equal(resize(images[:, :, :8], 8), images[:, :, :8])


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_other_sizes_keep_the_picture(shape):
    """A ramp stays a ramp, to a grey value, but for the pixels at the border."""
    ramp = np.linspace(20, 220, shape[0])
    images = np.round(np.broadcast_to(ramp[:, None, None], (2, *shape))).astype(np.uint8)
    actual = resize(images, 20)
    assert actual.shape == (2, 20, 20, shape[2]) and actual.dtype == np.uint8
    centres = (np.arange(20) + 0.5) * shape[0] / 20 - 0.5
    expected = np.interp(centres, np.arange(shape[0]), ramp)
    np.testing.assert_allclose(actual[:, 2:-2, 5, 0], np.tile(expected[2:-2], (2, 1)), atol=1.5)


def test_images_have_the_size_of_the_setting(tmp_path):
    (x, y), (others, labels) = write_cifar(tmp_path, 10, "binary")
    made = load("cifar10", tmp_path, image_size=16)
    for split, images, classes in (("train", x, y), ("test", others, labels)):
        small = zip(resize(images, 16), classes, strict=True)
        assert examples(made, split) == {(a.tobytes(), int(b)) for a, b in small}
    assert made.extent.endswith("images resized to 16 x 16 pixels")
    kept = load("cifar10", tmp_path)
    assert kept.sha256 == load("cifar10", tmp_path, image_size=32).sha256 != made.sha256
    assert "resized" not in load("cifar10", tmp_path, image_size=32).extent


@pytest.mark.parametrize("test", ["official", "own"])
def test_the_balanced_split_has_as_many_test_examples_of_each_class(tmp_path, test):
    """Without files, there are 20 test images of each class."""
    settings = {"source": "simulated", "test": test}
    made = load("fashion_mnist", tmp_path, balanced_test=50, **settings)
    plain = load("fashion_mnist", tmp_path, **settings)
    balanced = made.data.shared["balanced"]
    assert np.bincount(balanced.y).tolist() == [5] * 10 and balanced.count == 50
    official = examples(load("fashion_mnist", tmp_path, source="simulated"), "test")
    drawn = {(a.tobytes(), int(b)) for a, b in zip(balanced.x, balanced.y, strict=True)}
    assert drawn <= official and len(drawn) == 50
    assert made.sha256 != plain.sha256 and not plain.data.shared
    assert examples(made, "test") == examples(plain, "test")


@pytest.mark.parametrize("count", [55, 210])
def test_balanced_splits_that_do_not_fit_are_refused(tmp_path, count):
    message = f"data.balanced_test={count} is not a multiple of the 10 classes with at most 20 "
    with pytest.raises(ValueError, match=message + ".*a multiple of 10 up to 200$"):
        load("fashion_mnist", tmp_path, source="simulated", balanced_test=count)


@pytest.mark.release
def test_runs_of_several_seeds_have_balanced_splits_of_their_own():
    config = change(
        fashion_mnist.get_config(),
        {"data.source": "simulated", "data.balanced_test": 30, "data.image_size": 7},
    )
    loaded = {seed: load_federation(change(config, {"seed": seed})) for seed in (0, 1)}
    config = change(config, {"model.name": "mlp", "model.hidden": (4,), "rounds": 1})
    config = change(config, {"local_steps": 1, "eval.splits": ("balanced",)})
    trials = [batch.Trial({}, seed) for seed in loaded]
    _, (_, outcome) = batch.run_trials(config, loaded, trials, at_once=2)
    alone = graphfl_jax.run(change(config, {"seed": 1}), loaded[1])
    actual, expected = (run.results["scores"]["balanced"] for run in (outcome, alone))
    for point in ("G", "L", "P"):
        scores = (scores[point]["per_client"] for scores in (actual, expected))
        np.testing.assert_allclose(*scores)
