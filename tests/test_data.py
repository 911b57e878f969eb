"""Federations: the split and its refusals, the laws of FL-60, and NOAA's table for TPT-48."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

from graphfl_jax.build import wanted
from graphfl_jax.data import DATASETS, federation, fl60, partition, relations, tpt48, us_states

FL60 = {
    "root": "",
    "source": "auto",
    "path": "",
    "seed": 0,
    "val_fraction": 0.0,
    "generator_seed": 0,
}
TPT48 = FL60 | {"protocol": "years", "download": False}
TRAFFIC = {
    **{"root": "none", "source": "simulated", "path": "", "roads": "auto"},
    **{"sensors": 5, "steps": 300},
}
SIMULATED = {
    "compcars": FL60 | {"source": "simulated", "image_size": 16, "car_relations": "nearby"},
    "metr_la": TRAFFIC,
    "pems_bay": TRAFFIC,
    "tpt48": TPT48 | {"source": "simulated"},
}


def make(x, y, **changes):
    settings = {"task": "classification", "outputs": 2, "val_fraction": 0.25, "seed": 0}
    graph = relations.from_edges(2, [(0, 1)])
    return federation.federate(
        ["ann", "bob"], x=x, y=y, graph=graph, name="toy", source="real", **settings | changes
    )


def numbered(*counts):
    """Examples that can be told apart: client i's row j is (i, j), its label j % 2."""
    x = [np.array([(i, j) for j in range(n)], float) for i, n in enumerate(counts)]
    return x, [np.arange(n) % 2 for n in counts]


def whole(loaded):
    """All examples of equally large clients, whichever split holds them: x, y [N, n, ...]."""
    parts = (loaded.data.train, *loaded.data.evals.values())
    return [np.concatenate([getattr(part, field) for part in parts], 1) for field in "xy"]


@pytest.mark.parametrize("val_fraction, sizes", [(0.1, (88, 12, 25)), (0.0, (100, 0, 25))])
def test_split_sizes(val_fraction, sizes):
    split = partition.random_split(125, 3, seed=1, val_fraction=val_fraction, test_fraction=0.2)
    assert tuple(len(split.get(part, ())) for part in ("train", "val", "test")) == sizes
    np.testing.assert_array_equal(np.sort(np.concatenate(list(split.values()))), range(125))


def test_test_examples_depend_neither_on_validation_nor_on_other_clients():
    x, y = numbered(20, 30)
    first = make(x, y, val_fraction=0.0).data.evals["test"]
    second = make([x[0][:15], x[1]], [y[0][:15], y[1]]).data.evals["test"]
    np.testing.assert_array_equal(first.x[1], second.x[1])


def test_stacking_pads_with_zeros_and_loses_nothing():
    x, y = numbered(8, 20)
    data = make(x, y).data
    assert data.train.x.shape == (2, 11, 2) and data.train.count.tolist() == [4, 11]
    assert not data.train.x[0, 4:].any() and not data.train.y[0, 4:].any()
    found = []
    for part in (data.train, *data.evals.values()):
        for rows, labels, count in zip(part.x, part.y, part.count, strict=True):
            np.testing.assert_array_equal(labels[:count], rows[:count, 1] % 2)
            found += map(tuple, rows[:count])
    assert sorted(found) == sorted(map(tuple, np.concatenate(x)))


def test_hash_is_of_the_data_and_not_of_the_split():
    x, y = numbered(8, 8)
    first = make(x, y, seed=0).sha256
    assert first == make(x, y, seed=1, val_fraction=0.0).sha256
    x[1][7, 1] += 1
    assert first != make(x, y).sha256


@pytest.mark.parametrize(
    "field, bad, named",
    [
        ("x", np.nan, "a NaN or infinite value in x of example 3"),
        ("x", 1e300, "a NaN or infinite value in x of example 3"),
        ("y", 2, "label 2 at example 3; labels are the integers 0 to 1"),
        ("y", -1, "label -1 at example 3"),
        ("y", 0.5, "label 0.5 at example 3"),
        ("y", np.nan, "label nan at example 3"),
    ],
)
def test_bad_values_are_refused_by_client_and_example(field, bad, named):
    x, y = numbered(8, 8)
    arrays = {"x": x, "y": [labels.astype(float) for labels in y]}
    arrays[field][1][3] = bad
    with pytest.raises(ValueError, match=f"toy: client 'bob' has {named}"):
        make(**arrays)


@pytest.mark.parametrize(
    "counts, changes, named",
    [
        ((8, 0), {}, "client 'bob' has no examples"),
        ((8, 1), {}, r"client 'bob' has too few examples \(1\) .* train, test, val"),
        ((8, 8, 8), {}, "x has 3 clients and 2 are named"),
        ((8, 8), {"val_fraction": 0.8}, "val_fraction=0.8"),
        ((8, 8), {"val_fraction": math.nan}, "val_fraction=nan"),
        ((8, 8), {"seed": -1}, "seed=-1"),
        ((8, 8), {"task": "ranking"}, "task='ranking'"),
    ],
)
def test_bad_federations_are_refused(counts, changes, named):
    with pytest.raises(ValueError, match=named):
        make(*numbered(*counts), **changes)


def test_clients_that_do_not_fit_each_other_are_refused():
    x, y = numbered(8, 8)
    with pytest.raises(ValueError, match="'bob' has 8 rows in x and 7 in y"):
        make(x, [y[0], y[1][:7]])
    with pytest.raises(ValueError, match=r"'bob' has x of shape \(1,\)"):
        make([x[0], x[1][:, :1]], y)
    with pytest.raises(ValueError, match="'ann' has 2 targets per example; set outputs"):
        make(x, x, task="regression", outputs=3)


@pytest.mark.parametrize(
    "name", [n for n, f in DATASETS.items() if "generator_seed" in wanted(f)]
)
def test_generator_seed_repeats_and_matters(name):
    settings = SIMULATED.get(name, FL60)
    first, again, other = (
        DATASETS[name](**settings | {"generator_seed": generator_seed})
        for generator_seed in (1, 1, 2)
    )
    assert first.sha256 == again.sha256 != other.sha256
    with pytest.raises(ValueError, match="generator_seed=-1"):
        DATASETS[name](**settings | {"generator_seed": -1})


def assert_separable_along_means(loaded):
    x, y = whole(loaded)
    assert x.shape == (60, 100, 2) and (y.sum(1) == 50).all()
    mean = np.where(y[..., None] == 0, x, -x).mean(1)  # [60, 2]
    np.testing.assert_array_equal(np.einsum("nsf,nf->ns", x, mean) > 0, y == 0)


def test_every_generated_fl60_client_is_separable_along_its_mean():
    for generator_seed in range(5):
        assert_separable_along_means(fl60.fl60(**FL60 | {"generator_seed": generator_seed}))


def test_published_fl60_has_545_edges_and_separable_clients(data_root):
    loaded = fl60.fl60(**FL60 | {"root": data_root, "source": "real"})
    degrees = np.bincount(loaded.data.graph.receivers)
    assert (loaded.source, degrees.sum()) == ("real", 2 * 545)
    assert (degrees.min(), degrees.max()) == (13, 27)
    assert_separable_along_means(loaded)


def drawn_angles(generator_seed):
    return np.random.default_rng(generator_seed).uniform(
        0, 2 * np.pi, 60
    )  # what is drawn first


def directions(angle):
    return np.stack([np.cos(angle), np.sin(angle)], 1)  # [60, 2]


def test_fl60_noise_is_a_normal_truncated_to_the_unit_disc():
    """Compares with P(radius < r) = (1 - exp(-r^2 / 2)) / (1 - exp(-1 / 2)).

    The largest distance of the empirical law from the true one exceeds 1.95 / sqrt(n) in one
    sample of a thousand (Kolmogorov).
    """
    x, y = whole(fl60.fl60(**FL60))
    angle = drawn_angles(0)
    mean = (1 + 6 * angle / (2 * np.pi))[:, None] * directions(angle)
    noise = np.where(y[..., None] == 0, x - mean[:, None], x + mean[:, None])
    radii = np.sort(np.linalg.norm(noise, axis=-1).ravel())
    law = (1 - np.exp(-(radii**2) / 2)) / (1 - np.exp(-0.5))
    steps = np.arange(1, len(radii) + 1) / len(radii)
    assert np.abs(steps - law).max() < 1.95 / math.sqrt(len(radii))
    assert radii[-1] <= 1 + 1e-5  # float32 at a distance of up to seven


@pytest.mark.parametrize(
    "load, law",
    [
        (fl60.fl60, lambda cosine: np.where(cosine < 0.2, 0, cosine)),
        (fl60.fl60_paper_formula, lambda cosine: 0.5 + 0.5 * cosine),
    ],
)
def test_edges_follow_the_cosine_of_the_angles(load, law):
    pairs = np.triu_indices(60, 1)
    cosines, joined = [], []
    for generator_seed in range(10):
        angle = drawn_angles(generator_seed)
        graph = load(**FL60 | {"generator_seed": generator_seed}).data.graph
        cosines.append(np.cos(angle[:, None] - angle)[pairs])
        joined.append(np.asarray(relations.adjacency(graph))[pairs])
    cosines, joined = np.concatenate(cosines), np.concatenate(joined)
    bins = np.digitize(cosines, (-0.8, -0.3, 0.2, 0.4, 0.6, 0.8, 0.95))
    for b in range(8):  # within four standard errors of a Bernoulli mean, exact where it is 0
        expected, count = law(cosines[bins == b]).mean(), (bins == b).sum()
        bound = 4 * math.sqrt(expected * (1 - expected) / count)
        assert abs(joined[bins == b].mean() - expected) <= bound


def test_paper_formula_has_the_bayes_accuracy_of_its_integral():
    """A client's best accuracy is Phi(omega / pi), and omega / pi is uniform on (0, 2)."""
    grid = (np.arange(20_000) + 0.5) / 10_000
    integral = np.mean([0.5 * (1 + math.erf(t / math.sqrt(2))) for t in grid])
    assert integral == pytest.approx(0.805, abs=1e-3)
    correct = []
    for generator_seed in range(10):
        x, y = whole(fl60.fl60_paper_formula(**FL60 | {"generator_seed": generator_seed}))
        side = np.einsum("nsf,nf->ns", x, directions(drawn_angles(generator_seed)))
        correct.append(((side < 0) == y).mean())
    # Four standard errors: the best accuracies of 600 clients have a deviation of 0.14.
    assert np.mean(correct) == pytest.approx(integral, abs=4 * 0.14 / math.sqrt(600))


def test_fl60_says_which_sources_and_files_it_accepts(tmp_path):
    with pytest.raises(ValueError, match="'simulated'.*auto, generated, real, file"):
        fl60.fl60(**FL60 | {"source": "simulated"})
    with pytest.raises(ValueError, match="'real'.*auto, generated"):
        fl60.fl60_paper_formula(**FL60 | {"source": "real"})
    with pytest.raises(FileNotFoundError, match="no file .*dg60.toy_d60_spiral.pkl; put"):
        fl60.fl60(**FL60 | {"source": "real", "root": tmp_path})
    with pytest.raises(ValueError, match="data.path='x.pkl' is not read"):
        fl60.fl60(**FL60 | {"path": "x.pkl"})


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(0).uniform(-20, 95, (48, 125, 12)).round(1)


@pytest.fixture
def lines(table):
    """NOAA's layout: 48 states of 125 years, and a line of Alaska's, which is not read."""
    keys = [f"{state + 1:03}002{year}" for state in range(48) for year in range(1895, 2020)]
    months = ["".join(f"{t:7.2f}" for t in row) for row in table.reshape(-1, 12)]
    whole_lines = [key + row + "   " for key, row in zip(keys, months, strict=True)]
    return [*whole_lines, "0500021925" + "  30.00" * 12 + "   "]


def written(folder, lines):
    path = folder / "tpt48" / "climdiv-tmpcst-v1.0.0-20200106"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    return path


def test_table_is_read_as_written(tmp_path, table, lines):
    path = written(tmp_path, lines)
    np.testing.assert_array_equal(tpt48.read_table(path, first_year=1895), table)
    np.testing.assert_array_equal(tpt48.read_table(path, first_year=2008), table[:, 113:])


def test_newest_release_under_the_root_is_loaded(tmp_path, lines):
    older = written(tmp_path, lines).with_name("climdiv-tmpcst-v1.0.0-20190101")
    older.write_text("not read")
    assert tpt48.tpt48(**TPT48 | {"root": tmp_path, "source": "real"}).source == "real"


def test_years_scale_each_state_by_its_own_extremes(tmp_path, table, lines):
    loaded = tpt48.tpt48(**TPT48 | {"path": written(tmp_path, lines)})
    years = np.concatenate(whole(loaded), -1)  # [48, 125, 12], shuffled in time
    assert years.shape == (48, 125, 12)
    np.testing.assert_array_equal(years.min((1, 2)), np.zeros(48))
    np.testing.assert_array_equal(years.max((1, 2)), np.ones(48))
    low, high = table.min((1, 2))[:, None], table.max((1, 2))[:, None]
    expected = (table.mean(1) - low) / (high - low)  # [48, 12], a month's mean over the years
    np.testing.assert_allclose(years.mean(1), expected, rtol=1e-4)


def test_windows_are_133_and_share_one_scale():
    loaded = tpt48.tpt48(**TPT48 | {"source": "simulated", "protocol": "windows"})
    windows = np.concatenate(whole(loaded), -1)
    assert windows.shape == (48, 133, 12) and (windows.min(), windows.max()) == (0, 1)
    assert len(np.unique(windows[0])) == 144  # the months of twelve years


@pytest.mark.parametrize(
    "number, change, named",
    [
        (7, lambda line: line[:50], "line 7 is not a code"),
        (8, lambda line: line.replace(".", "x"), "line 8 is not a code"),
        (9, lambda line: line[:10] + "    nan" + line[17:], "line 9 is not a code"),
        (126, lambda line: line[:4] + "01" + line[6:], "line 126: state 002, year 1895.*01"),
        (250, lambda line: line[:17] + " -99.90" + line[24:], "Arizona .* month 2 of 2019"),
    ],
)
def test_lines_of_another_format_are_refused(tmp_path, lines, number, change, named):
    lines[number - 1] = change(lines[number - 1])
    with pytest.raises(ValueError, match=f"20200106.*{named}"):
        tpt48.tpt48(**TPT48 | {"path": written(tmp_path, lines)})


def test_truncated_table_is_refused(tmp_path, lines):
    with pytest.raises(ValueError, match="lacks 2 state-years, first Wyoming 2018"):
        tpt48.tpt48(**TPT48 | {"path": written(tmp_path, lines[:-3])})


def test_missing_files_are_errors_only_where_they_were_asked_for(tmp_path):
    settings = TPT48 | {"root": tmp_path}
    with pytest.warns(UserWarning, match="the climate is simulated"):
        assert tpt48.tpt48(**settings).source == "simulated"
    for source in ("real", "file"):
        with pytest.raises(FileNotFoundError, match="no file .*ncei.noaa.gov"):
            tpt48.tpt48(**settings | {"source": source})
    with pytest.raises(FileNotFoundError, match="absent.txt"):
        tpt48.tpt48(**settings | {"path": "absent.txt"})
    with pytest.raises(ValueError, match="data.protocol='days'.*years, windows"):
        tpt48.tpt48(**settings | {"protocol": "days"})


@pytest.mark.parametrize("served, source", [("all", "real"), ("torn", None), ("none", None)])
def test_download_is_kept_only_if_it_is_whole(tmp_path, lines, monkeypatch, served, source):
    def fetch(url, destination, *, max_bytes):
        if served == "none":
            raise OSError("no network")
        destination.parent.mkdir(exist_ok=True)
        text = "\n".join(lines if served == "all" else lines[:99])
        destination.write_text("20260806\n" if url.endswith("procdate.txt") else text)
        return destination

    settings = TPT48 | {"root": tmp_path, "download": True}
    monkeypatch.setattr(tpt48.files, "fetch", fetch)
    told = nullcontext() if source else pytest.warns(UserWarning, match="download failed")
    with told:
        assert tpt48.tpt48(**settings).source == (source or "simulated")
    kept = [path.name for path in tmp_path.glob("tpt48/*")]
    assert kept == (["climdiv-tmpcst-v1.0.0-20260806"] if source else [])
    if source is None:
        with pytest.raises(
            FileNotFoundError, match="download failed: .*(no network|cut short)"
        ):
            tpt48.tpt48(**settings | {"source": "real"})


def test_borders_are_those_of_the_map(data_root):
    embeddings = [code for _, code, _ in us_states.STATES]
    ours = {frozenset((embeddings[i], embeddings[j])) for i, j in us_states.BORDERS}
    pairs = (data_root / "tpt48" / "usa_map.txt").read_text().split("\n")
    assert ours == {frozenset(pair.split()) for pair in pairs if pair and "DC" not in pair}
    assert len(us_states.BORDERS) == 105


def test_official_table_has_its_known_extremes(data_root):
    path = tpt48.files.locate(data_root, "tpt48/climdiv-tmpcst-*-20200106")
    table = tpt48.read_table(path, first_year=1895)
    assert (table.min(), table.max()) == (-14.1, 89.2)
    recent = table[:, 2008 - 1895 :]
    assert (recent.min(), recent.mean().round(3), recent.std().round(3)) == (
        -2.7,
        52.899,
        17.745,
    )


def test_simulated_climate_resembles_one():
    table = tpt48.simulate(0)
    assert table.shape == (48, 125, 12)
    latitude = [latitude for _, _, latitude in us_states.STATES]
    assert np.corrcoef(latitude, table.mean((1, 2)))[0, 1] < -0.95
    assert (table.mean((0, 1)).argmax(), table.mean((0, 1)).argmin()) == (6, 0)  # July, January
    correlation = np.corrcoef((table - table.mean(1, keepdims=True)).reshape(48, -1))
    graph = tpt48.border_graph()
    assert correlation[graph.receivers, graph.senders].mean() > correlation.mean() + 0.2
