"""METR-LA and PEMS-BAY: official file formats, windows, splits, units, simulated traffic."""

import pickle

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import graphfl_jax
from experiments.paper.panacea_text import forecast_rows
from graphfl_jax import tree
from graphfl_jax.build import build_experiment
from graphfl_jax.commands.common.result_tables import error_table
from graphfl_jax.configs import change, metr_la
from graphfl_jax.data import DATASETS, knn, roads, traffic
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.data.relations import weight_matrix
from graphfl_jax.data.simulated_traffic import simulate
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.metrics import Units, standardise, task_of
from graphfl_jax.models import gru
from graphfl_jax.program import Program

SENSORS = ["773869", "767541", "767542", "717447"]
STEPS = 100
FIVE_MINUTES = 5 * 60 * 10**9


def speeds(steps=STEPS):
    return 40 + np.random.default_rng(0).uniform(0, 30, (steps, len(SENSORS))).round(1)


def write_series(path, values, names=SENSORS, unit="ns", **attributes):
    """Writes a frame in the fixed format of pandas; times begin at midnight."""
    times = traffic.METR_LA.first + FIVE_MINUTES * np.arange(len(values), dtype=np.int64)
    times = times.astype("M8[ns]").astype(f"M8[{unit}]").astype(np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as hdf:
        frame = hdf.create_group("df")
        frame["axis0"] = np.array(names, "S6")
        frame["axis1"] = times
        frame["axis1"].attrs["kind"] = np.bytes_(f"datetime64[{unit}]")
        frame["axis1"].attrs.update(attributes)
        frame["block0_items"] = np.array(names[::-1], "S6")  # can differ from axis0 in order
        frame["block0_values"] = values[:, ::-1]


def write_matrix(path, names=SENSORS, weights=None):
    weights = WEIGHTS if weights is None else weights
    index = {name: i for i, name in enumerate(names)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps([names, index, weights.astype(np.float32)], protocol=2))


# Senders are rows. The second sensor receives from the first with weight 0.5, and so on.
WEIGHTS = np.array([[1, 0.5, 0, 0], [0, 1, 0.2, 0], [0.9, 0, 1, 0], [0, 0, 0, 1]])


@pytest.fixture
def root(tmp_path):
    write_series(tmp_path / "metr-la/metr-la.h5", speeds())
    write_matrix(tmp_path / "metr-la/adj_mx.pkl")
    return tmp_path


def load(root, **changes):
    return traffic.metr_la(**{"root": root, "source": "real"} | changes)


@pytest.mark.parametrize(
    "official, counts",
    [(traffic.METR_LA, (23974, 3425, 6850)), (traffic.PEMS_BAY, (36465, 5209, 10419))],
)
def test_official_lengths_are_split_as_published(official, counts):
    assert traffic.split_sizes("", official.steps) == counts


def test_official_file_format_is_read(root):
    loaded = load(root)
    assert loaded.clients == tuple(SENSORS)
    assert loaded.extent == "4 of 207 sensors, 100 of 34272 steps"
    assert (loaded.source, loaded.name, loaded.outputs) == ("real", "metr_la", 12)
    weights = np.asarray(weight_matrix(loaded.data.graph))  # [receiver, sender]
    np.testing.assert_allclose(weights, (WEIGHTS - np.eye(4)).T, rtol=1e-6)
    parts = {"train": loaded.data.train, **loaded.data.evals}
    counts = {part: int(windows.count[0]) for part, windows in parts.items()}
    assert counts == {"train": 54, "val": 8, "test": 15}  # of 77 examples


def test_windows_are_in_the_order_of_time(root):
    """Compares every example with the file, and the units with the training inputs."""
    loaded, table = load(root), speeds()
    first = 0
    inputs = np.concatenate([table[j : j + 12] for j in range(54)])
    units = loaded.units
    np.testing.assert_allclose(
        [units.mean, units.std], [inputs.mean(), inputs.std()], rtol=1e-5
    )
    for part in ("train", "val", "test"):
        windows = loaded.data.train if part == "train" else loaded.data.evals[part]
        for i in range(len(SENSORS)):
            rows = tree.take(windows, i).rows(np.arange(windows.count[i]))
            for j, (x, y) in enumerate(zip(rows.x, rows.y, strict=True)):
                steps = slice(first + j, first + j + 24)
                mph = table[steps, i]
                np.testing.assert_allclose(units.mean + units.std * y, mph[12:], rtol=1e-4)
                np.testing.assert_allclose(
                    units.mean + units.std * x[:12, 0], mph[:12], rtol=1e-4
                )
                assert not x[12:, 0].any()
                time = (np.arange(STEPS)[steps] * 5 / (24 * 60)) % 1  # of day, from midnight
                np.testing.assert_allclose(x[:, 1], time, atol=1e-6)
        first += int(windows.count[0])


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_have_the_unit_that_the_file_states(root, unit):
    expected = load(root).sha256
    write_series(root / "metr-la/metr-la.h5", speeds(), unit=unit)
    assert load(root).sha256 == expected


def test_times_with_a_zone_are_refused(root):
    """They are stored in UTC, so times of day would be moved by hours."""
    zone = np.bytes_("America/Los_Angeles")
    write_series(root / "metr-la/metr-la.h5", speeds(), tz=zone)
    with pytest.raises(
        ValueError, match="metr-la.h5: .* zone 'America/Los_Angeles', .*; write"
    ):
        load(root)


def test_a_pickle_whose_table_contradicts_its_list_is_refused(root):
    path = root / "metr-la/adj_mx.pkl"
    table = {SENSORS[0]: 0, SENSORS[1]: 2, SENSORS[2]: 1}
    path.write_bytes(pickle.dumps([SENSORS, table, WEIGHTS], protocol=2))
    with pytest.raises(
        ValueError, match="sensor 767541 is number 1 in the list .* and 2 in .*; r"
    ):
        load(root)


@pytest.mark.parametrize("place", ["-118.2,34.1", "34.1,241.8", "34.1,-inf"])
def test_places_that_are_not_on_earth_are_refused(tmp_path, place):
    file = tmp_path / "places.csv"
    file.write_text(f"index,sensor,latitude,longitude\n0,7,34.1,-118.2\n1,8,{place}\n")
    with pytest.raises(ValueError, match="places.csv: line 3 has latitude .* Earth; use the"):
        roads.read_positions(file, ["7"])


def test_a_mark_and_blank_last_lines_of_lists_are_skipped(tmp_path):
    """Otherwise the mark would be a part of the first sensor."""
    names = roads.RoadFiles("no.pkl", "distances.csv", "sensors.txt", "places.csv")
    texts = {"distances.csv": "A,B,300\nB,A,900\n", "sensors.txt": "A,B"}
    texts["places.csv"] = "A,34.1,-118.2\nB,34.2,-118.3\n"
    for name, text in texts.items():
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n")
    settings = {"source": "distances", "series": "speeds.h5", "complete": False}
    graph = roads.read_relations(["A", "B"], tmp_path, names, **settings)
    assert graph.senders.tolist() == [0]
    assert roads.read_positions(tmp_path / "places.csv", ["A", "B"]) is not None


def test_first_sensors_and_steps_are_loaded(root):
    loaded = load(root, sensors=2, steps=60)
    assert loaded.clients == tuple(SENSORS[:2])
    assert loaded.data.graph.senders.tolist() == [0]
    assert loaded.extent == "2 of 207 sensors, 60 of 34272 steps"


def test_weights_are_computed_from_distances(root):
    """exp(-(d / sigma)^2) with sigma over all distances; weights below 0.1 are left out."""
    (root / "metr-la/adj_mx.pkl").unlink()
    listed = [("773869", "773869", 0.0), ("773869", "767541", 300.0)]
    listed += [("767541", "773869", 900.0), ("767542", "717447", 100.0)]
    text = "from,to,cost\n" + "".join(f"{a},{b},{d}\n" for a, b, d in listed)
    (root / "metr-la/distances_la_2012.csv").write_text(text)
    weights = np.asarray(weight_matrix(load(root).data.graph))
    sigma = np.std([d for *_, d in listed])
    expected = np.zeros((4, 4))
    expected[1, 0] = np.exp(-((300 / sigma) ** 2))
    expected[3, 2] = np.exp(-((100 / sigma) ** 2))
    assert np.exp(-((900 / sigma) ** 2)) < 0.1
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "sensors, listed, complete, variance",
    [
        # Of 300, 900 and 1500, with mean 900; the list is of more sensors than are loaded.
        ("AB", "A,B,C", False, (600**2 + 0 + 600**2) / 3),
        # The sensors are all of the data set, whatever the list has.
        ("ABC", "A,B,C,D", True, (600**2 + 0 + 600**2) / 3),
        # Without a list, also of 3300; the mean is 1500.
        ("AB", "", False, (1200**2 + 600**2 + 0 + 1800**2) / 4),
    ],
)
def test_sigma_is_that_of_all_sensors_of_the_data_set(
    tmp_path, sensors, listed, complete, variance
):
    names = roads.RoadFiles("no.pkl", "distances.csv", "sensors.txt", "no.csv")
    (tmp_path / "distances.csv").write_text("A,B,300\nB,C,900\nC,A,1500\nA,D,3300\n")
    if listed:
        (tmp_path / "sensors.txt").write_text(listed)
    settings = {"source": "distances", "series": "speeds.h5", "complete": complete}
    weights = np.asarray(
        weight_matrix(roads.read_relations(list(sensors), tmp_path, names, **settings))
    )
    assert weights[1, 0] == pytest.approx(np.exp(-(300**2) / variance))  # [receiver, sender]


def test_a_part_of_the_distances_is_refused(tmp_path):
    """Otherwise the sensors of the lost rows would have no relations."""
    names = roads.RoadFiles("no.pkl", "distances.csv", "no.txt", "no.csv")
    rows = [f"{a},{b},{100 * (a + 2 * b)}" for a in range(4) for b in range(4)]
    settings = {"source": "distances", "series": "speeds.h5", "complete": True}
    sensors = ["0", "1", "2", "3"]
    (tmp_path / "distances.csv").write_text("\n".join(rows))
    assert len(roads.read_relations(sensors, tmp_path, names, **settings).nodes) == 4
    (tmp_path / "distances.csv").write_text("\n".join(rows[:3]))
    with pytest.raises(ValueError, match="distances.csv: sensor 3 of speeds.h5 is missing"):
        roads.read_relations(sensors, tmp_path, names, **settings)
    (tmp_path / "distances.csv").write_text("\n".join(["0,1,x12", *rows]))
    with pytest.raises(ValueError, match="distances.csv: line 1 is not from,to,metres"):
        roads.read_relations(sensors, tmp_path, names, **settings)


def test_positions_with_a_single_quote_are_refused_in_one_line(tmp_path):
    """The rest of the file is then one cell, which the reader limits."""
    file = tmp_path / "places.csv"
    file.write_text('0,"7,34.1,-118.2\n' + 10_000 * "1,8,34.2,-118.3\n")
    with pytest.raises(ValueError, match=r"places.csv: the file is no list \(.*\); use the"):
        roads.read_positions(file, ["7", "8"])


def test_two_places_of_a_sensor_are_refused(tmp_path):
    file = tmp_path / "places.csv"
    rows = ["0,7,34.1,-118.2", "1,8,34.2,-118.3", "2,7,34.1,-118.2"]
    file.write_text("\n".join(["index,sensor,latitude,longitude", *rows]))
    positions = roads.read_positions(file, ["7", "8"])
    np.testing.assert_array_equal(positions.values, [[-118.2, 34.1], [-118.3, 34.2]])
    file.write_text("\n".join([*rows, "3,8,34.2,-118.4"]))
    with pytest.raises(ValueError, match="line 4 has another place of sensor 8 .*; remove"):
        roads.read_positions(file, ["7", "8"])


def compress(path, blosc=32001):
    """Makes the speeds look as if they were compressed by Blosc, which h5py does not have."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((4, 4))
    settings.set_filter(blosc, h5py.h5z.FLAG_OPTIONAL)
    with h5py.File(path, "r+") as hdf:
        (frame,) = hdf.values()
        space, chunk = frame["block0_values"].id.get_space(), bytes(8 * 16)
        del frame["block0_values"]
        kind = h5py.h5t.NATIVE_DOUBLE
        made = h5py.h5d.create(frame.id, b"block0_values", kind, space, settings)
        made.write_direct_chunk((0, 0), chunk)
        with pytest.raises(OSError, match="Can't .*open directory"):
            np.asarray(frame["block0_values"])


def damage(root, how):
    folder = root / "metr-la"
    if how == "format":
        with h5py.File(folder / "metr-la.h5", "w") as hdf:
            hdf["speed"] = speeds()
    elif how == "no hdf":
        (folder / "metr-la.h5").write_text("speeds")
    elif how == "damaged hdf":
        content = (folder / "metr-la.h5").read_bytes()
        (folder / "metr-la.h5").write_bytes(content.replace(b"TREE", b"LEAF"))
    elif how == "filter":
        compress(folder / "metr-la.h5")
    elif how == "matrix":
        write_matrix(folder / "adj_mx.pkl", SENSORS[:3], WEIGHTS[:3, :3])
    elif how == "no matrix":
        (folder / "adj_mx.pkl").unlink()
    elif how == "short":
        write_series(folder / "metr-la.h5", speeds(steps=23))
    elif how == "no readings":
        write_series(folder / "metr-la.h5", speeds() * (np.arange(4) != 2))
    elif how == "nan":
        values = speeds()
        values[7, 1] = np.nan
        write_series(folder / "metr-la.h5", values)
    elif how == "not square":
        write_matrix(folder / "adj_mx.pkl", SENSORS, WEIGHTS[:3])


@pytest.mark.parametrize(
    "how, words",
    [
        ("format", ("metr-la.h5", "fixed format")),
        ("no hdf", ("metr-la.h5", "fixed format")),
        ("damaged hdf", ("metr-la.h5", "fixed format")),
        ("filter", ("metr-la.h5", "filter 32001, which h5py lacks", "pandas.read_hdf(")),
        ("matrix", ("adj_mx.pkl", "sensor 717447")),
        ("no matrix", ("adj_mx.pkl", "DCRNN")),
        ("short", ("metr-la.h5", "23 steps are too few")),
        ("no readings", ("metr-la.h5", "sensor 767542", "no readings")),
        ("nan", ("sensor 767541", "row 7")),
        ("not square", ("adj_mx.pkl", "square")),
    ],
)
def test_damaged_files_are_refused_in_one_line(root, how, words):
    damage(root, how)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load(root)
    message = str(caught.value)
    assert "\n" not in message and "; " in message and not message.endswith(".")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"sensors": 5}, "data.sensors=5 exceeds the 4 sensors of .*metr-la.h5; .* to 4 or"),
        ({"steps": 101}, "data.steps=101 exceeds the 100 steps of .*metr-la.h5"),
        ({"source": "simulated", "sensors": 1}, "data.sensors=1 is too small .*=2 or more"),
        ({"source": "simulated", "sensors": 2, "steps": 20}, "metr_la: 20 steps are too few"),
    ],
)
def test_unsuitable_sensors_and_steps_are_refused(root, changes, named):
    with pytest.raises(ValueError, match=named):
        load(root, **changes)


def test_traffic_is_simulated_without_a_file(default_root):
    with pytest.warns(UserWarning, match="no file .*metr-la.h5, so traffic is simulated; put"):
        loaded = load(default_root, source="auto", sensors=6, steps=400)
    assert loaded.source == "simulated" and len(loaded.clients) == 6
    with pytest.raises(FileNotFoundError, match="metr_la: no file .*metr-la.h5; put .*DCRNN"):
        load(default_root)
    write_matrix(default_root / "metr-la/adj_mx.pkl")
    with pytest.raises(FileNotFoundError, match="but there is metr-la/adj_mx.pkl; put"):
        load(default_root, source="auto")


@pytest.mark.parametrize("name", ["metr_la", "pems_bay"])
def test_real_files_have_the_published_relations(data_root, name):
    """All 207 or 325 sensors, or the sample of 16 sensors of PEMS-BAY."""
    if not list(data_root.glob(f"{name.replace('_', '-')}/*.h5")):
        pytest.skip(f"there are no files of {name}")
    loaded = DATASETS[name](root=data_root, source="real")
    edges = {207: 1515, 325: 2369, 16: 4}
    assert len(loaded.data.graph.senders) == edges[len(loaded.clients)]


def test_weights_of_pems_bay_are_computed_from_its_distances(data_root):
    folder = data_root / "pems-bay"
    if not (folder / "distances_bay_2017.csv").is_file():
        pytest.skip("there are no distances of pems_bay")
    sensors, weights = roads.read_matrix(folder / "adj_mx_bay.pkl")
    also, computed = roads.read_distances(folder / "distances_bay_2017.csv", sensors)
    assert also == sensors and (weights > 0).sum() == 2369 + 325
    np.testing.assert_allclose(computed, weights, atol=2e-7)


def test_simulated_traffic_has_rush_hours_and_jams_and_depends_on_the_seed():
    week = {"sensors": 30, "steps": 7 * 288, "first": traffic.PEMS_BAY.first}
    drawn = simulate(3, **week, step=FIVE_MINUTES)
    again, other = (simulate(seed, **week, step=FIVE_MINUTES) for seed in (3, 4))
    np.testing.assert_array_equal(drawn.values, again.values)
    assert not np.array_equal(drawn.values, other.values)
    assert drawn.values.min() >= 3 and drawn.values.max() <= 75
    days = drawn.values.reshape(30, 7, 288)
    # 2017-01-01 was a Sunday. Rush hours of working days are slower than nights.
    rush, night = days[:, 1:6, 17 * 12 : 19 * 12].mean(), days[:, 1:6, : 5 * 12].mean()
    assert rush < night - 5
    assert (drawn.values < 30).mean() > 0.01
    reachable = np.isfinite(drawn.distances)
    assert reachable.any(axis=1).all() and not reachable.all()


def test_rows_of_windows_hide_the_targets():
    series = np.stack([np.arange(10.0), 100 + np.arange(10.0)], axis=1).astype(np.float32)
    windows = Windows(jnp.asarray(series), jnp.int32(5), past=2, future=3)
    assert windows.size == 6
    rows = jax.jit(lambda windows, indices: windows.rows(indices))(windows, jnp.array([4, 0]))
    np.testing.assert_array_equal(rows.x[0, :, 0], [4, 5, 0, 0, 0])
    np.testing.assert_array_equal(rows.x[1, :, 1], [100, 101, 102, 103, 104])
    np.testing.assert_array_equal(rows.y, [[6, 7, 8], [2, 3, 4]])
    assert rows.count == 2


def test_errors_are_in_the_units_of_the_targets():
    """MAE, RMSE and MAPE computed by hand; one of three targets is missing."""
    units = Units("mph", mean=50.0, std=10.0, step=5, missing=0.0)
    task = task_of("regression", units)
    mph = np.full((3, 12), 40.0, np.float32)
    mph[2, 2] = 0.0  # at 15 minutes
    forecast = mph + np.array([[4.0], [-2.0], [6.0]], np.float32)
    extra_metrics = task.extra_metrics(standardise(forecast, units), standardise(mph, units))
    errors = task.summarize(
        {name: value.mean(axis=0)[None] for name, value in extra_metrics.items()}
    )
    assert list(errors) == ["15 min", "30 min", "60 min"]
    at15, at60 = errors["15 min"], errors["60 min"]
    np.testing.assert_allclose(at15["mae"], 4, rtol=1e-5)
    np.testing.assert_allclose(at15["rmse"], np.sqrt((16 + 4 + 36) / 3), rtol=1e-5)
    np.testing.assert_allclose(at15["mae_seen"], 3, rtol=1e-5)
    np.testing.assert_allclose(at15["rmse_seen"], np.sqrt(10), rtol=1e-5)
    np.testing.assert_allclose(at15["mape_seen"], 100 * (4 / 40 + 2 / 40) / 2, rtol=1e-5)
    assert at60["mae"] == pytest.approx(at60["mae_seen"])
    mph[:, 2] = 0.0
    extra_metrics = task.extra_metrics(standardise(forecast, units), standardise(mph, units))
    errors = task.summarize(
        {name: value.mean(axis=0)[None] for name, value in extra_metrics.items()}
    )
    assert errors["15 min"]["mape_seen"] is None and errors["60 min"]["mape_seen"] > 0
    rows = error_table({"units": "mph", **dict.fromkeys("GLP", errors)}).rows
    assert rows[1] == ["15 min", "G and L and P", "none", "none", "none"] and len(rows) == 1 + 3


def test_masked_readings_count_neither_in_the_loss_nor_in_the_score():
    """The loss and the score by hand, of two real examples and one of padding."""
    units = Units("mph", mean=50.0, std=10.0, step=5, missing=0.0, masked=True)
    task, plain = task_of("regression", units), task_of("regression", units._replace(masked=0))
    mph = np.full((3, 4), 40.0, np.float32)
    mph[0, :3] = 0.0
    y, outputs = standardise(mph, units), standardise(mph, units)
    outputs = outputs + np.array([[3.0], [1.0], [9.0]], np.float32)
    np.testing.assert_allclose(task.loss(outputs, y), [9 / 4, 1, 81], rtol=1e-6)
    real = np.array([True, True, False])
    np.testing.assert_allclose(task.score(outputs, y, real), (9 + 4 * 1) / 5, rtol=1e-6)
    assert plain.loss(outputs, y)[0] == pytest.approx(9)
    gradient = jax.grad(lambda outputs: task.loss(outputs, y).sum())(outputs)
    assert not np.asarray(gradient)[0, :3].any() and np.asarray(gradient)[0, 3] > 0
    errors = task.extra_metrics(outputs, y, real)
    of_examples = plain.extra_metrics(outputs[:2], y[:2])
    for name, values in errors.items():
        np.testing.assert_allclose(values, of_examples[name].mean(axis=0), rtol=1e-6)


@pytest.mark.release
def test_only_clients_with_missing_test_readings_have_another_score_if_they_are_masked(
    root, monkeypatch
):
    monkeypatch.setattr(gru, "UNROLL", 1)  # it compiles faster
    values = speeds()
    values[-6:, 1] = 0.0  # the training targets of all sensors are there
    write_series(root / "metr-la/metr-la.h5", values)
    small = {"rounds": 1, "cohort_size": 2, "batch_size": 4, "local_steps": 1}
    small |= {"model.hidden": (3,), "data.root": str(root), "data.source": "real"}
    config = change(metr_la.get_config("local"), small)
    runs = [change(config, {"data.missing": missing}) for missing in traffic.MISSING]
    finals = [graphfl_jax.run(run, keep_in=None).final for run in runs]
    included, masked = (final["test"]["P"] for final in finals)
    np.testing.assert_allclose(np.delete(masked, 1), np.delete(included, 1), rtol=1e-5)
    assert masked[1] < 0.5 * included[1]  # a reading of 0 mph is far from all others


def test_a_sensor_without_readings_in_a_split_is_refused_if_they_are_masked(root):
    values = speeds()
    values[-40:, 1] = 0.0
    write_series(root / "metr-la/metr-la.h5", values)
    assert not load(root).units.masked
    with pytest.raises(ValueError, match="sensor 767541 without readings among its validation"):
        load(root, missing="masked")


@pytest.mark.parametrize(
    "step, outputs, horizons",
    [
        (5, 6, ["15 min", "30 min"]),
        (30, 12, ["30 min", "60 min"]),
        (20, 12, ["60 min"]),
        (60 * 24, 3, []),
    ],
)
def test_only_horizons_that_are_forecast_have_errors(step, outputs, horizons):
    """The error of the step with the number k, from 1, is k."""
    task = task_of("regression", Units("mph", 0.0, 1.0, step, missing=-1.0))
    y = np.zeros((4, outputs), np.float32)
    extras = task.extra_metrics(y + np.arange(1, outputs + 1), y) if task.extra_metrics else {}
    by_horizon = (
        task.summarize({name: value[:1] for name, value in extras.items()}) if extras else {}
    )
    assert list(by_horizon) == horizons
    for horizon, errors in by_horizon.items():
        assert errors["mae"] == int(horizon.split()[0]) / step


def test_errors_of_clients_are_averaged_before_roots_and_shares():
    """From the means of two clients; the second one misses half of its targets."""
    means = {"abs": (3, 1), "square": (9, 1), "seen": (1, 0.5)}
    means |= {"abs_seen": (4, 1), "square_seen": (8, 1), "share_seen": (0.3, 0.1)}
    units = Units("mph", mean=50.0, std=10.0, step=5, missing=0.0)
    extras = {name: np.tile(np.array(values)[:, None], 3) for name, values in means.items()}
    errors = task_of("regression", units).summarize(extras)
    assert list(errors) == ["15 min", "30 min", "60 min"]
    seen = (1 + 0.5) / 2
    for of_horizon in errors.values():
        assert of_horizon["mae"] == pytest.approx((3 + 1) / 2)
        assert of_horizon["rmse"] == pytest.approx(np.sqrt((9 + 1) / 2))
        assert of_horizon["mae_seen"] == pytest.approx((4 + 1) / 2 / seen)
        assert of_horizon["rmse_seen"] == pytest.approx(np.sqrt((8 + 1) / 2 / seen))
        assert of_horizon["mape_seen"] == pytest.approx(100 * (0.3 + 0.1) / 2 / seen)


@pytest.mark.release
@pytest.mark.usefixtures("shared_programs")
def test_results_have_errors_in_units_and_a_resumed_run_has_the_same(
    root, tmp_path, monkeypatch
):
    monkeypatch.setattr(gru, "UNROLL", 1)  # it compiles faster
    small = {"rounds": 2, "eval_every": 1, "cohort_size": 2, "batch_size": 4, "local_steps": 2}
    small |= {"model.hidden": (5,), "clients_per_eval": 3}
    data = {"data.root": str(root), "data.source": "real"}
    config = change(metr_la.get_config("fedavg"), small | data)
    out = tmp_path / "run"
    results = graphfl_jax.run(config, out=out).results
    errors = results["errors"]
    assert errors["units"] == "mph" and results["dataset"]["extent"].startswith("4 of 207")
    assert 0 < errors["G"]["15 min"]["mae"] < 100
    again = graphfl_jax.run(config, out=out, resume=True).results
    assert again["errors"] == errors


def as_examples(windows):
    """The same examples, with every window stored in full."""
    clients = [
        tree.take(windows, i).rows(np.arange(count)) for i, count in enumerate(windows.count)
    ]
    return Examples(*(np.stack([rows[k] for rows in clients]) for k in (0, 1)), windows.count)


@pytest.mark.release
@pytest.mark.parametrize("clients_per_eval", [3, 0])
def test_windows_train_and_score_the_same_as_stored_examples(root, clients_per_eval):
    small = {"model.name": "mlp", "model.hidden": (4,), "client_optimizer": "sgd"}
    small |= {"cohort_size": 2, "batch_size": 5, "local_steps": 3, "hparams.client_lr": 0.01}
    config = change(metr_la.get_config("fedavg"), small)
    loaded = load(root)
    stored = loaded.data._replace(
        train=as_examples(loaded.data.train),
        evals={part: as_examples(windows) for part, windows in loaded.data.evals.items()},
    )
    experiment = build_experiment(config, loaded)
    program = Program(
        experiment.build,
        groups=experiment.groups,
        eval_batch_size=4,
        clients_per_eval=clients_per_eval,
    ).compiled()
    key, hparams = jax.random.key(0), {"client_lr": jnp.float32(0.01)}
    played = []
    for data in (loaded.data, stored):
        state = program.start(key, hparams, data)
        state, log = program.advance(state, key, hparams, data, jnp.int32(3))
        played.append((state, log, program.evaluate(state, key, hparams, data)))
    for ours, theirs in zip(*map(jax.tree.leaves, played), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_nearest_and_new_clients_work_with_series(root):
    """Sensors 0 and 1 have nearly the same speeds, and so have 2 and 3."""
    table = speeds()
    table[:, 1], table[:, 3] = table[:, 0] + 0.1, table[:, 2] + 0.1
    table[:, 2:] *= 0.5
    write_series(root / "metr-la/metr-la.h5", table)
    loaded = hold_out(knn.knn(load(root), neighbours=1), fraction=0.25, seed=0)
    assert loaded.new_clients == 1 and loaded.data.train.series.shape[0] == 3
    edges = np.nonzero(weight_matrix(loaded.everyone.graph))
    index = [SENSORS.index(client) for client in loaded.clients]
    joined = {frozenset((index[i], index[j])) for i, j in zip(*edges, strict=True)}
    assert joined == {frozenset((0, 1)), frozenset((2, 3))}


def test_sensors_that_join_later_do_not_decide_on_the_scaling(root):
    def held(table):
        write_series(root / "metr-la/metr-la.h5", table)
        return hold_out(load(root), fraction=0.25, seed=0)

    first = held(speeds())
    table, new = speeds(), SENSORS.index(first.clients[-1])
    table[:, new] += 100
    other = held(table)
    np.testing.assert_array_equal(first.data.train.series, other.data.train.series)
    assert first.units == other.units and first.loader_scaling is not None
    known = np.delete(speeds(), new, axis=1)
    inputs = sliding_window_view(
        known[: first.data.train.count[0] + traffic.PAST - 1], traffic.PAST, axis=0
    )
    np.testing.assert_allclose(first.units.mean, inputs.mean(), rtol=1e-5)
    shift = other.everyone.train.series[-1, :, 0] - first.everyone.train.series[-1, :, 0]
    np.testing.assert_allclose(shift, 100 / first.units.std, rtol=1e-4)


def test_linear_series_are_forecast_by_regression_and_not_by_persistence(tmp_path):
    """The speed of each sensor increases at its own constant rate."""
    ramp = 20 + np.arange(STEPS)[:, None] * np.array([0.1, 0.2, 0.3, 0.4])
    write_series(tmp_path / "metr-la/metr-la.h5", ramp)
    write_matrix(tmp_path / "metr-la/adj_mx.pkl")
    loaded = load(tmp_path)
    rows = forecast_rows(loaded, task_of("regression", loaded.units))
    persistence, regression = (row["errors"]["P"]["60 min"] for row in rows)
    np.testing.assert_allclose(persistence["mae"], 12 * 0.25, rtol=1e-4)
    assert regression["mae"] < 1e-2
