"""Federations: checks and the split; declared settings; the data of FL-60."""

import hashlib
import math
import pickle

import numpy as np
import pytest

from graphfl_jax.data import (
    DATASETS,
    GRAPHS,
    federation,
    fl60,
    label_skew,
    relations,
    splits,
)
from graphfl_jax.data.bits import digest_rows, random_bits
from graphfl_jax.data.splits import RandomSplit
from graphfl_jax.declarations import parameters

# Small data, by the name of a loader's parameter.
SMALL = {
    "root": "none",
    "image_size": 16,
    "sensors": 5,
    "clients": 30,
    "steps": 300,
    "seed": 0,
    "partition": label_skew.iid(clients=3, seed=0),
}
IMAGE_SETS = ("cifar10", "cifar100", "fashion_mnist", "femnist", "mnist")


def declarations(factory):
    return {parameter.name: parameter for parameter in parameters(factory)}


def generate(name, generator_seed):
    """A data set without files."""
    declared = declarations(DATASETS[name])
    arguments = {name: value for name, value in SMALL.items() if name in declared}
    if "source" in declared and "simulated" in declared["source"].declaration.choices:
        arguments["source"] = "simulated"
    return DATASETS[name](**arguments, generator_seed=generator_seed)


def generate_fl60(generator_seed=0):
    return fl60.fl60(root="", generator_seed=generator_seed, seed=0)


def generate_paper_formula(generator_seed=0):
    return fl60.fl60_paper_formula(generator_seed=generator_seed, seed=0)


def make(x, y, **changes):
    settings = {"task": "classification", "outputs": 2, "split": RandomSplit(0, 0.25)}
    graph = relations.from_edges(2, [(0, 1)])
    return federation.federate(
        ["ann", "bob"], x=x, y=y, graph=graph, name="toy", source="real", **settings | changes
    )


def numbered(*counts):
    """Distinct examples: row j of client i is (i, j), and its label is j % 2."""
    x = [np.array([(i, j) for j in range(n)], float) for i, n in enumerate(counts)]
    return x, [np.arange(n) % 2 for n in counts]


def all_examples(loaded):
    """The examples x and y [N, n, ...] of all splits, for clients of equal size."""
    parts = (loaded.data.train, *loaded.data.evals.values())
    return [np.concatenate([getattr(part, field) for part in parts], 1) for field in "xy"]


@pytest.mark.parametrize("val_fraction, sizes", [(0.1, (88, 12, 25)), (0.0, (100, 0, 25))])
def test_split_sizes(val_fraction, sizes):
    split = RandomSplit(seed=1, val_fraction=val_fraction).of_client(3, 125)
    assert tuple(len(split.get(part, ())) for part in ("train", "val", "test")) == sizes
    np.testing.assert_array_equal(np.sort(np.concatenate(list(split.values()))), range(125))


def test_the_split_of_many_clients_is_a_random_one_of_each(monkeypatch):
    """In array operations: of the sizes of `of_client`, and without an example twice."""
    counts = np.array([5, 12, 125] * 400)
    one_by_one = RandomSplit(1, 0.1).of_clients(counts)
    monkeypatch.setattr(splits, "MANY", 0)
    parts = RandomSplit(1, 0.1).of_clients(counts)
    for part, rows in parts.items():
        np.testing.assert_array_equal(rows.counts, one_by_one[part].counts)
        begins = np.repeat(np.cumsum(counts) - counts, rows.counts)
        assert ((rows.values >= begins) & (rows.values < begins + counts[rows.clients])).all()
    everything = np.concatenate([rows.values for rows in parts.values()])
    np.testing.assert_array_equal(np.sort(everything), range(counts.sum()))
    # It does not depend on other clients, and does on the seed.
    other = RandomSplit(1, 0.1).of_clients(np.array([7, *counts[1:]]))["test"].split()
    assert all(
        (a == b + 2).all() for a, b in zip(other[1:], parts["test"].split()[1:], strict=True)
    )
    assert (RandomSplit(2, 0.1).of_clients(counts)["test"].values != parts["test"].values).any()
    # Of the 400 clients with 5 examples, each example is the test example of 80 of them.
    first = np.concatenate(parts["test"].split()[::3]) - np.repeat(
        (np.cumsum(counts) - counts)[::3], 1
    )
    times = np.bincount(first, minlength=5)
    assert (abs(times - 80) < 4.5 * np.sqrt(400 * 0.2 * 0.8)).all()


@pytest.mark.parametrize("index", [8, -1])
def test_an_example_of_another_client_in_a_split_is_refused(index):
    x, y = numbered(8, 20)
    splits_of_both = [
        {"train": np.arange(4), "test": np.array([5, index])},
        {"train": np.arange(4), "test": np.arange(5, 20)},
    ]
    why = rf"client '.*' has example {index} in test, and its 8 examples are counted from 0; "
    with pytest.raises(ValueError, match=why):
        make(x, y, split=splits_of_both)


def test_the_hash_of_many_clients_names_their_split(monkeypatch):
    few = make(*numbered(8, 20))
    monkeypatch.setattr(federation, "MANY", 1)
    assert make(*numbered(8, 20)).sha256 != few.sha256


def test_clients_of_one_size_have_the_hash_of_their_arrays():
    """As a loop over the clients gives it, for equal sizes and for others."""
    for sizes in ([3] * 12, [3, 4]):
        rows = federation.Rows.of([np.full((n, 2), n, ">f4") for n in sizes])
        digest = hashlib.sha256()
        for n in sizes:
            digest.update(f"<f4({n}, 2)".encode() + np.full((n, 2), n, "<f4").tobytes())
        assert federation._digest([rows]) == digest.hexdigest()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_targets_are_flattened(shape):
    """So that a difference from outputs [B, O] is one of each example."""
    x, y = numbered(8, 20)
    targets = [
        np.ones((len(labels), *shape)) * labels.reshape(-1, *[1] * len(shape)) for labels in y
    ]
    outputs = int(np.prod(shape))
    made = make(x, targets, task="regression", outputs=outputs)
    assert made.data.train.y.shape == (2, 11, outputs)
    labels = made.data.train.x[0, :4, 1] % 2
    np.testing.assert_array_equal(made.data.train.y[0, :4], np.outer(labels, np.ones(outputs)))


def test_test_examples_do_not_depend_on_validation_or_other_clients():
    x, y = numbered(20, 30)
    first = make(x, y, split=RandomSplit(0)).data.evals["test"]
    second = make([x[0][:15], x[1]], [y[0][:15], y[1]]).data.evals["test"]
    np.testing.assert_array_equal(first.x[1], second.x[1])


def test_stacking_pads_with_zeros_and_keeps_all_examples():
    x, y = numbered(8, 20)
    data = make(x, y).data
    assert data.train.x.shape == (2, 11, 2) and data.train.count.tolist() == [4, 11]
    assert not data.train.x[0, 4:].any() and not data.train.y[0, 4:].any()
    rows_of_all = []
    for part in (data.train, *data.evals.values()):
        for rows, labels, count in zip(part.x, part.y, part.count, strict=True):
            np.testing.assert_array_equal(labels[:count], rows[:count, 1] % 2)
            rows_of_all += map(tuple, rows[:count])
    assert sorted(rows_of_all) == sorted(map(tuple, np.concatenate(x)))


def test_hash_depends_on_the_data_and_not_on_the_split():
    x, y = numbered(8, 8)
    first = make(x, y).sha256
    assert first == make(x, y, split=RandomSplit(1)).sha256
    x[1][7, 1] += 1
    assert first != make(x, y).sha256


@pytest.mark.parametrize(
    "field, bad, named",
    [
        ("x", np.nan, "a NaN or infinite value in x of its example 3, counted from 0"),
        ("x", 1e300, "a NaN or infinite value in x of its example 3, counted from 0"),
        ("y", 2, "label 2 at its example 3, counted from 0; labels are the integers 0 to 1"),
        ("y", -1, "label -1 at its example 3, counted from 0"),
        ("y", 0.5, "label 0.5 at its example 3, counted from 0"),
        ("y", np.nan, "label nan at its example 3, counted from 0"),
    ],
)
def test_wrong_values_are_refused_with_client_and_example(field, bad, named):
    x, y = numbered(8, 8)
    arrays = {"x": x, "y": [labels.astype(float) for labels in y]}
    arrays[field][1][3] = bad
    with pytest.raises(ValueError, match=f"toy: client 'bob' has {named}"):
        make(**arrays)


@pytest.mark.parametrize(
    "counts, changes, named",
    [
        ((8, 0), {}, "client 'bob' has no examples"),
        ((8, 1), {}, "client 'bob' has 1 examples, and none of them is for test or val; leave"),
        (
            (8, 5),
            {"split": RandomSplit(0, 0.1)},
            "'bob' has 5 examples, and none .* for val; .* data.val_fraction to a larger share",
        ),
        (
            (8, 2),
            {"split": RandomSplit(0, 0.3)},
            "'bob' has 2 examples, and none of them is for test; .* give it more examples$",
        ),
        (
            (8, 3),
            {"split": RandomSplit(0, 0.7)},
            "'ann' has 8 examples, and none .* for train; .* data.val_fraction to a smaller sh",
        ),
        ((8, 8, 8), {}, "x has 3 clients and there are 2 names"),
        (
            (8, 8),
            {"split": RandomSplit(0, 0.8)},
            r"data.val_fraction=0.8 leaves .* in \[0, 0.8\)",
        ),
        ((8, 8), {"split": RandomSplit(0, math.nan)}, "val_fraction=nan"),
        ((8, 8), {"split": RandomSplit(-1)}, "seed=-1"),
        ((8, 8), {"task": "ranking"}, "task='ranking' is unknown; .* classification, regr"),
    ],
)
def test_invalid_federations_are_refused(counts, changes, named):
    with pytest.raises(ValueError, match=named) as caught:
        make(*numbered(*counts), **changes)
    assert "; " in str(caught.value) and not str(caught.value).endswith(".")


def test_a_larger_share_gives_a_small_client_a_validation_example():
    make(*numbered(8, 5), split=RandomSplit(0, 0.2))  # the remedy of the error above


def test_two_clients_of_one_name_are_refused():
    x, y = numbered(8, 8)
    graph = relations.from_edges(2, [(0, 1)])
    with pytest.raises(ValueError, match="^toy: 2 clients are called 'ann'; give each its own"):
        federation.federate(
            ["ann", "ann"],
            x=x,
            y=y,
            graph=graph,
            task="classification",
            outputs=2,
            name="toy",
            source="real",
            split=RandomSplit(0),
        )


def test_an_example_in_two_splits_is_refused():
    apart = {"train": np.arange(6), "test": np.arange(6, 8)}
    both = {"train": np.arange(6), "test": np.arange(5, 8)}
    make(*numbered(8, 8), split=[apart, apart])
    with pytest.raises(ValueError, match="'bob' has example 5 twice in its splits; give every"):
        make(*numbered(8, 8), split=[apart, both])


def test_bytes_of_one_client_and_floats_of_another_are_floats_together():
    _, y = numbered(8, 8)
    x = [np.full((8, 2), 7, np.uint8), np.full((8, 2), 0.5)]
    for order in (x, x[::-1]):
        train = make(order, y).data.train
        values = [rows[:count] for rows, count in zip(train.x, train.count, strict=True)]
        assert [set(rows.ravel()) for rows in values] == [set(rows.ravel()) for rows in order]


def test_clients_of_different_shapes_are_refused():
    x, y = numbered(8, 8)
    with pytest.raises(ValueError, match="'bob' has 8 rows in x and 7 in y"):
        make(x, [y[0], y[1][:7]])
    with pytest.raises(ValueError, match=r"'bob' has x of shape \(1,\)"):
        make([x[0], x[1][:, :1]], y)
    with pytest.raises(ValueError, match="'ann' has 2 targets per example and outputs=3"):
        make(x, x, task="regression", outputs=3)


@pytest.mark.parametrize(
    "name",
    [
        # Thousands of images are drawn.
        pytest.param(name, marks=[pytest.mark.release] * (name in ("compcars", *IMAGE_SETS)))
        for name, factory in DATASETS.items()
        if "generator_seed" in declarations(factory)
    ],
)
def test_data_depend_on_the_generator_seed_only(name):
    first, again, other = (generate(name, generator_seed) for generator_seed in (1, 1, 2))
    assert first.sha256 == again.sha256 != other.sha256


@pytest.mark.parametrize(
    "factory", [*DATASETS.values(), *GRAPHS.values(), *label_skew.PARTITIONS.values()]
)
def test_all_parameters_are_supplied_or_declared_with_a_valid_default(factory):
    supplied = ("root", "seed", "federation")
    for name, declaration, default in parameters(factory):
        assert not declaration.misfit(name, default, supplied)


@pytest.mark.parametrize(
    "name, field, value, named",
    [
        ("fl60", "source", "simulated", "data.source='simulated'.*auto, generated, real, file"),
        ("tpt48", "source", "generated", "'generated'.*auto, real, file, simulated"),
        ("tpt48", "protocol", "days", "data.protocol='days'.*years, windows"),
        ("tpt48", "download", 1, "data.download=1 .*true or false"),
        ("tpt48", "val_fraction", 0.9, r"data.val_fraction=0.9 is not in \[0, 0.8\]"),
        ("metr_la", "source", "official", "data.source='official'.*auto, real, simulated"),
        ("metr_la", "roads", "map", "data.roads='map'.*auto, matrix, distances"),
        ("pems_bay", "sensors", -1, "data.sensors=-1"),
        ("pems_bay", "steps", -1, "data.steps=-1"),
        ("fl60_paper_formula", "generator_seed", -1, "data.generator_seed=-1"),
        ("compcars", "car_relations", "far", "'far'.*nearby, adjacent, same, either"),
        ("compcars", "image_size", 7, "data.image_size=7"),
        ("geometric", "clients", 0, "data.clients=0 must be at least 1"),
        ("geometric", "mean_degree", -1.0, r"data.mean_degree=-1.0 is not in \[0, 1000\]"),
    ],
)
def test_declarations_refuse_invalid_settings(name, field, value, named):
    with pytest.raises(ValueError, match=named):
        declarations(DATASETS[name])[field].declaration.check(f"data.{field}", value)


def assert_separable_along_means(loaded):
    x, y = all_examples(loaded)
    assert x.shape == (60, 100, 2) and (y.sum(1) == 50).all()
    mean = np.where(y[..., None] == 0, x, -x).mean(1)  # [60, 2]
    np.testing.assert_array_equal(np.einsum("nsf,nf->ns", x, mean) > 0, y == 0)


def test_every_generated_fl60_client_is_separable_along_its_mean():
    for generator_seed in range(5):
        assert_separable_along_means(generate_fl60(generator_seed))


def test_published_fl60_has_545_edges_and_separable_clients(data_root):
    loaded = fl60.fl60(root=data_root, source="real", seed=0)
    degrees = np.bincount(loaded.data.graph.receivers)
    assert (loaded.source, degrees.sum()) == ("real", 2 * 545)
    assert (degrees.min(), degrees.max()) == (13, 27)
    assert_separable_along_means(loaded)


def drawn_angles(generator_seed):
    """The clients' angles, which both loaders draw first."""
    return np.random.default_rng(generator_seed).uniform(0, 2 * np.pi, 60)


def directions(angle):
    return np.stack([np.cos(angle), np.sin(angle)], 1)  # [60, 2]


def test_fl60_noise_is_a_normal_truncated_to_the_unit_disc():
    """Compares with P(radius < r) = (1 - exp(-r^2 / 2)) / (1 - exp(-1 / 2)).

    The largest distance between the empirical and the true distribution function exceeds
    1.95 / sqrt(n) in one of a thousand samples (Kolmogorov).
    """
    x, y = all_examples(generate_fl60())
    angle = drawn_angles(0)
    mean = (1 + 6 * angle / (2 * np.pi))[:, None] * directions(angle)
    noise = np.where(y[..., None] == 0, x - mean[:, None], x + mean[:, None])
    radii = np.sort(np.linalg.norm(noise, axis=-1).ravel())
    expected = (1 - np.exp(-(radii**2) / 2)) / (1 - np.exp(-0.5))
    steps = np.arange(1, len(radii) + 1) / len(radii)
    assert np.abs(steps - expected).max() < 1.95 / math.sqrt(len(radii))
    assert radii[-1] <= 1 + 1e-5  # x is float32, with values up to 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "generate, probability",
    [
        (generate_fl60, lambda cosine: np.where(cosine < 0.2, 0, cosine)),
        (generate_paper_formula, lambda cosine: 0.5 + 0.5 * cosine),
    ],
)
def test_probability_of_edges_depends_on_the_cosine_of_the_angles(generate, probability):
    pairs = np.triu_indices(60, 1)
    cosines, joined = [], []
    for generator_seed in range(10):
        angle = drawn_angles(generator_seed)
        graph = generate(generator_seed).data.graph
        cosines.append(np.cos(angle[:, None] - angle)[pairs])
        joined.append(np.asarray(relations.adjacency(graph))[pairs])
    cosines, joined = np.concatenate(cosines), np.concatenate(joined)
    bins = np.digitize(cosines, (-0.8, -0.3, 0.2, 0.4, 0.6, 0.8, 0.95))
    for b in range(8):  # within four standard errors of a Bernoulli mean; exact if it is 0
        expected, count = probability(cosines[bins == b]).mean(), (bins == b).sum()
        bound = 4 * math.sqrt(expected * (1 - expected) / count)
        assert abs(joined[bins == b].mean() - expected) <= bound


def test_paper_formula_has_the_bayes_accuracy_of_its_integral():
    """A client's best accuracy is Phi(omega / pi), and omega / pi is uniform on (0, 2)."""
    grid = (np.arange(20_000) + 0.5) / 10_000
    integral = np.mean([0.5 * (1 + math.erf(t / math.sqrt(2))) for t in grid])
    assert integral == pytest.approx(0.805, abs=1e-3)
    correct = []
    for generator_seed in range(10):
        x, y = all_examples(generate_paper_formula(generator_seed))
        side = np.einsum("nsf,nf->ns", x, directions(drawn_angles(generator_seed)))
        correct.append(((side < 0) == y).mean())
    # Four standard errors: the best accuracies of the 600 clients have a deviation of 0.14.
    assert np.mean(correct) == pytest.approx(integral, abs=4 * 0.14 / math.sqrt(600))


def test_fl60_reads_a_file_only_for_the_sources_real_and_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file .*dg60.toy_d60_spiral.pkl; put"):
        fl60.fl60(root=tmp_path, source="real", seed=0)
    with pytest.raises(ValueError, match="data.path='x.pkl' is not read .*to real or file"):
        fl60.fl60(root="", path="x.pkl", seed=0)
    with pytest.raises(FileNotFoundError, match="data.path='x.pkl' is not a file"):
        fl60.fl60(root="", path="x.pkl", source="file", seed=0)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"label": np.zeros(5)}, r"'label' has shape \(5,\) and not \(6000,\)"),
        ({"A": np.ones((60, 60))}, "'A' has wrong values .*zero diagonal"),
        ({"domain": np.full(6000, 60)}, "'domain' has wrong values"),
    ],
)
def test_wrong_arrays_in_the_fl60_file_are_refused(tmp_path, changes, named):
    content = {"data": np.zeros((6000, 2)), "label": np.zeros(6000), "A": np.zeros((60, 60))}
    content["domain"] = np.repeat(np.arange(60), 100)
    path = tmp_path / "fl60.pkl"
    path.write_bytes(pickle.dumps(content | changes))
    with pytest.raises(ValueError, match=f"fl60.pkl: {named}"):
        fl60.fl60(root="", path=path, source="file", seed=0)


def test_facts_of_clients_are_those_of_a_loop(monkeypatch):
    """Of clients of one size and of several, whose rows are read together or one by one."""
    rng = np.random.default_rng(3)
    for sizes in ([12, 12], [8, 20]):
        x = [rng.normal(size=(n, 3)) + n for n in sizes]
        labels, targets = (
            [rng.integers(0, 2, n) for n in sizes],
            [rng.normal(size=(n, 2)) for n in sizes],
        )
        for y, settings in ((labels, {}), (targets, {"task": "regression"})):
            made = make(x, y, **settings)
            train, test = made.data.train, made.data.evals["test"]
            rows = [train.x[i][:n] for i, n in enumerate(train.count)]
            expected = min(map(np.min, rows)), max(map(np.max, rows))
            for some in (1, 10_000):
                monkeypatch.setattr(federation, "SOME", some)
                assert federation.input_range(made) == expected
            for clients in (None, [1]):
                chosen = range(2) if clients is None else clients
                known, tests = (
                    [part.y[i][: part.count[i]] for i in chosen] for part in (train, test)
                )
                known = np.concatenate(known)
                if settings:
                    constant = known.mean(axis=0, dtype=np.float64)
                    each = [np.mean(np.square(rows - constant)) for rows in tests]
                else:
                    constant = np.bincount(known).argmax()
                    each = [np.mean(rows == constant) for rows in tests]
                np.testing.assert_allclose(
                    federation.score_of_constant(made, clients), np.mean(each), rtol=1e-12
                )


def test_rows_have_equal_digests_only_if_their_bytes_are_equal():
    """Also bytes of a length that is no multiple of 8, and floats that differ in few bits."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (3000, 9)).astype(np.uint8)
    y = rng.integers(0, 2, (3000, 2)) * 2.0
    keys = digest_rows(x, y)
    for rows in (x, y, x[:, :8], x.astype(np.float64)):
        whole, part = np.unique(rows, axis=0), digest_rows(rows)
        assert len(np.unique(part)) == len(whole)
    both = np.concatenate([x, y], axis=1)
    _, places = np.unique(both, axis=0, return_inverse=True)
    assert (
        len(np.unique(np.stack([keys, places.ravel().astype(np.uint64)]), axis=1).T)
        == len(np.unique(keys))
        == len(np.unique(both, axis=0))
    )


def test_bits_are_those_of_splitmix64():
    """Those of SplitMix64 in the form of its reference code, by whole numbers of Python."""
    step = 0x9E3779B97F4A7C15

    def by_the_reference(state):
        z = (state + step) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    # The state after n steps is n times the step.
    numbers = [by_the_reference(n * step % 2**64) for n in range(5)]
    np.testing.assert_array_equal(random_bits(np.arange(5)), np.array(numbers, np.uint64))
    np.testing.assert_array_equal(random_bits(2, np.arange(3)), random_bits(np.arange(2, 5)))
