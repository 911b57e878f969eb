"""METR-LA and PEMS-BAY: files in the official formats, windows, splits, units, simulation."""

import pickle

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.paper.forecast_baselines import forecast_rows
from graphfl_jax import tree
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs import base, metr_la, pems_bay
from graphfl_jax.core import Examples, Units, Windows
from graphfl_jax.data import files, roads, traffic
from graphfl_jax.data.relations import dense
from graphfl_jax.data.simulated_traffic import simulate
from graphfl_jax.metrics import HORIZONS, standardised, task_of
from graphfl_jax.program import make_program

SENSORS = ["773869", "767541", "767542", "717447"]
STEPS = 100
FIVE_MINUTES = 5 * 60 * 10**9


def speeds(steps=STEPS):
    return 40 + np.random.default_rng(0).uniform(0, 30, (steps, len(SENSORS))).round(1)


def write_series(path, values, names=SENSORS):
    """A frame as pandas writes it in fixed format, from midnight on."""
    times = traffic.METR_LA.first + FIVE_MINUTES * np.arange(len(values), dtype=np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as hdf:
        frame = hdf.create_group("df")
        frame["axis0"] = np.array(names, "S6")
        frame["axis1"] = times
        frame["axis1"].attrs["kind"] = np.bytes_("datetime64[ns]")
        frame["block0_items"] = np.array(names[::-1], "S6")  # in an order of their own
        frame["block0_values"] = values[:, ::-1]


def write_matrix(path, names=SENSORS, weights=None):
    weights = WEIGHTS if weights is None else weights
    numbers = {name: i for i, name in enumerate(names)}
    path.write_bytes(pickle.dumps([names, numbers, weights.astype(np.float32)], protocol=2))


# From row to column; diagonal 1. The second sensor hears the first, and so on.
WEIGHTS = np.array([[1, 0.5, 0, 0], [0, 1, 0.2, 0], [0.9, 0, 1, 0], [0, 0, 0, 1]])


@pytest.fixture
def root(tmp_path):
    write_series(tmp_path / "metr-la/metr-la.h5", speeds())
    write_matrix(tmp_path / "metr-la/adj_mx.pkl")
    return tmp_path


def load(root, **changes):
    config = metr_la.get_config("fedavg")
    config.data.root = str(root)
    config.data.source = "real"
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return load_federation(config)


@pytest.mark.parametrize(
    "official, counts",
    [(traffic.METR_LA, (23974, 3425, 6850)), (traffic.PEMS_BAY, (36465, 5209, 10419))],
)
def test_the_official_lengths_split_as_published(official, counts):
    assert traffic.split_sizes("", official.steps) == counts


def test_a_file_in_the_official_layout_loads(root):
    loaded = load(root)
    assert loaded.clients == tuple(SENSORS)
    assert loaded.extent == "4 of 207 sensors, 100 of 34272 steps"
    assert (loaded.source, loaded.name, loaded.outputs) == ("real", "metr_la", 12)
    heard = np.asarray(dense(loaded.data.graph))  # [receiver, sender]
    np.testing.assert_allclose(heard, (WEIGHTS - np.eye(4)).T, rtol=1e-6)
    # 77 examples: 54 for training, 15 for test, 8 between.
    parts = {"train": loaded.data.train, **loaded.data.evals}
    assert {part: int(own.count[0]) for part, own in parts.items()} == {
        "train": 54,
        "val": 8,
        "test": 15,
    }


def test_windows_are_those_of_the_series_in_the_order_of_time(root):
    """Every example against the file itself, and speeds against their mean over inputs."""
    loaded, table = load(root), speeds()
    first = 0
    inputs = np.concatenate([table[j : j + 12] for j in range(54)])
    units = loaded.units
    np.testing.assert_allclose(
        [units.mean, units.std], [inputs.mean(), inputs.std()], rtol=1e-5
    )
    for part in ("train", "val", "test"):
        own = loaded.data.train if part == "train" else loaded.data.evals[part]
        for i in range(len(SENSORS)):
            rows = tree.take(own, i).rows(np.arange(own.count[i]))
            for j, (x, y) in enumerate(zip(rows.x, rows.y, strict=True)):
                here = slice(first + j, first + j + 24)
                mph = table[here, i]
                np.testing.assert_allclose(units.mean + units.std * y, mph[12:], rtol=1e-4)
                np.testing.assert_allclose(
                    units.mean + units.std * x[:12, 0], mph[:12], rtol=1e-4
                )
                assert not x[12:, 0].any()
                day = (np.arange(STEPS)[here] * 5 / (24 * 60)) % 1  # the file begins at 0:00
                np.testing.assert_allclose(x[:, 1], day, atol=1e-6)
        first += int(own.count[0])


def test_sensors_and_steps_can_be_fewer(root):
    loaded = load(root, data__sensors=2, data__steps=60)
    assert loaded.clients == tuple(SENSORS[:2])
    assert loaded.data.graph.senders.tolist() == [0]  # the graph is cut to them
    assert loaded.extent == "2 of 207 sensors, 60 of 34272 steps"


def test_relations_follow_from_distances(root):
    """exp(-(d / sigma)^2), sigma over all listed distances, without those under 0.1."""
    (root / "metr-la/adj_mx.pkl").unlink()
    listed = [("773869", "773869", 0.0), ("773869", "767541", 300.0)]
    listed += [("767541", "773869", 900.0), ("767542", "717447", 100.0)]
    text = "from,to,cost\n" + "".join(f"{a},{b},{d}\n" for a, b, d in listed)
    (root / "metr-la/distances_la_2012.csv").write_text(text)
    heard = np.asarray(dense(load(root).data.graph))
    sigma = np.std([d for *_, d in listed])
    expected = np.zeros((4, 4))
    expected[1, 0] = np.exp(-((300 / sigma) ** 2))
    expected[3, 2] = np.exp(-((100 / sigma) ** 2))
    assert np.exp(-((900 / sigma) ** 2)) < 0.1
    np.testing.assert_allclose(heard, expected, rtol=1e-5)


def _damaged(root, how):
    folder = root / "metr-la"
    if how == "layout":
        with h5py.File(folder / "metr-la.h5", "w") as hdf:
            hdf["speed"] = speeds()
    elif how == "no hdf":
        (folder / "metr-la.h5").write_text("speeds")
    elif how == "matrix":
        write_matrix(folder / "adj_mx.pkl", SENSORS[:3], WEIGHTS[:3, :3])
    elif how == "no matrix":
        (folder / "adj_mx.pkl").unlink()
    elif how == "short":
        write_series(folder / "metr-la.h5", speeds(steps=23))
    elif how == "silent":
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
        ("layout", ("metr-la.h5", "fixed format")),
        ("no hdf", ("metr-la.h5", "fixed format")),
        ("matrix", ("adj_mx.pkl", "sensor 717447")),
        ("no matrix", ("adj_mx.pkl", "DCRNN")),
        ("short", ("metr-la.h5", "23 steps are too few")),
        ("silent", ("metr-la.h5", "sensor 767542", "no reading")),
        ("nan", ("sensor 767541", "time 7")),
        ("not square", ("adj_mx.pkl", "square")),
    ],
)
def test_bad_files_are_refused_in_one_line(root, how, words):
    _damaged(root, how)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load(root)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("data__source", "official", "data.source='official'"),
        ("data__roads", "map", "data.roads='map'"),
        ("data__sensors", 5, "data.sensors=5"),
        ("data__steps", 101, "data.steps=101"),
    ],
)
def test_bad_fields_are_refused(root, field, value, words):
    with pytest.raises(ValueError, match=words):
        load(root, **{field: value})


def test_without_a_file_traffic_is_simulated_and_says_so(tmp_path):
    with pytest.warns(UserWarning, match="traffic is simulated"):
        loaded = load(tmp_path, data__source="auto", data__sensors=6, data__steps=400)
    assert loaded.source == "simulated" and len(loaded.clients) == 6
    with pytest.raises(FileNotFoundError, match="metr-la.h5"):
        load(tmp_path)


@pytest.mark.parametrize("config", [metr_la, pems_bay])
def test_real_files_have_the_published_relations(config):
    """All 207 or 325 sensors, or the 16 of PEMS-BAY that are published apart."""
    root = files.default_root()
    config = config.get_config("fedavg")
    if not list(root.glob(f"{config.data.name.replace('_', '-')}/*.h5")):
        pytest.skip("no real data here")
    config.data.source = "real"
    loaded = load_federation(config)
    edges = {207: 1515, 325: 2369, 16: 4}
    assert len(loaded.data.graph.senders) == edges[len(loaded.clients)]


def test_pems_bays_relations_are_those_of_its_distances():
    root = files.default_root() / "pems-bay"
    if not (root / "distances_bay_2017.csv").is_file():
        pytest.skip("no real data here")
    named, weights = roads.read_matrix(root / "adj_mx_bay.pkl")
    also, rebuilt = roads.read_distances(root / "distances_bay_2017.csv", named)
    assert also == named and (weights > 0).sum() == 2369 + 325
    np.testing.assert_allclose(rebuilt, weights, atol=2e-7)


def test_simulated_traffic_has_rush_hours_jams_and_one_seed():
    week = {"sensors": 30, "steps": 7 * 288, "first": traffic.PEMS_BAY.first}
    drawn = simulate(3, **week, step=FIVE_MINUTES)
    again, other = (simulate(seed, **week, step=FIVE_MINUTES) for seed in (3, 4))
    np.testing.assert_array_equal(drawn.values, again.values)
    assert not np.array_equal(drawn.values, other.values)
    assert drawn.values.min() >= 3 and drawn.values.max() <= 75
    days = drawn.values.reshape(30, 7, 288)
    # 2017-01-01 was a Sunday. Slower at rush hours of working days than at night.
    rush, night = days[:, 1:6, 17 * 12 : 19 * 12].mean(), days[:, 1:6, : 5 * 12].mean()
    assert rush < night - 5
    assert (drawn.values < 30).mean() > 0.01
    reachable = np.isfinite(drawn.distances)
    assert reachable.any(axis=1).all() and not reachable.all()


def test_rows_of_windows_are_real_and_hide_what_is_to_be_forecast():
    series = np.stack([np.arange(10.0), 100 + np.arange(10.0)], axis=1).astype(np.float32)
    windows = Windows(jnp.asarray(series), jnp.int32(5), past=2, future=3)
    assert windows.size == 6
    rows = jax.jit(lambda windows, indices: windows.rows(indices))(windows, jnp.array([4, 0]))
    np.testing.assert_array_equal(rows.x[0, :, 0], [4, 5, 0, 0, 0])
    np.testing.assert_array_equal(rows.x[1, :, 1], [100, 101, 102, 103, 104])
    np.testing.assert_array_equal(rows.y, [[6, 7, 8], [2, 3, 4]])
    assert rows.count == 2


def test_errors_are_told_in_the_targets_units():
    """MAE, RMSE and MAPE by hand, with one target of three that is missing."""
    units = Units("mph", mean=50.0, std=10.0, step=5, missing=0.0)
    task = task_of("regression", units)
    mph = np.full((3, 12), 40.0, np.float32)
    mph[2, 2] = 0.0  # at 15 minutes
    said = mph + np.array([[4.0], [-2.0], [6.0]], np.float32)
    y = standardised(mph, units)
    extra_metrics = jax.tree.map(
        lambda leaf: leaf.mean(axis=0)[None], task.extra_metrics(standardised(said, units), y)
    )
    told = task.summarize(extra_metrics)
    assert list(told) == [f"{minutes} min" for minutes in HORIZONS]
    at15, at60 = told["15 min"], told["60 min"]
    np.testing.assert_allclose(at15["mae"], 4, rtol=1e-5)
    np.testing.assert_allclose(at15["rmse"], np.sqrt((16 + 4 + 36) / 3), rtol=1e-5)
    np.testing.assert_allclose(at15["mae_seen"], 3, rtol=1e-5)
    np.testing.assert_allclose(at15["rmse_seen"], np.sqrt(10), rtol=1e-5)
    np.testing.assert_allclose(at15["mape_seen"], 100 * (4 / 40 + 2 / 40) / 2, rtol=1e-5)
    assert at60["mae"] == pytest.approx(at60["mae_seen"])


def test_a_run_tells_errors_in_units_and_resumes_to_the_same(root, tmp_path):
    import graphfl_jax

    config = metr_la.get_config("panacea")
    config.data.root, config.data.source = str(root), "real"
    small = {"rounds": 2, "eval_every": 1, "cohort_size": 2, "batch_size": 4, "local_steps": 2}
    config.update_from_flattened_dict(small | {"model.hidden": (5,), "clients_per_eval": 3})
    out = tmp_path / "run"
    told = graphfl_jax.run(config, out=out).results
    errors = told["errors"]
    assert errors["units"] == "mph" and told["dataset"]["extent"].startswith("4 of 207")
    assert 0 < errors["G"]["15 min"]["mae"] < 100
    again = graphfl_jax.run(config, out=out, resume=True).results
    assert again["errors"] == errors


def written_out(windows):
    """The same examples with every window in an array of its own."""
    each = [
        tree.take(windows, i).rows(np.arange(count)) for i, count in enumerate(windows.count)
    ]
    return Examples(*(np.stack([rows[k] for rows in each]) for k in (0, 1)), windows.count)


@pytest.mark.parametrize("group", [0, 3])
def test_windows_train_and_score_as_examples_that_are_written_out(root, group):
    """All clients evaluated at once, or three at a time."""
    config = metr_la.get_config("fedavg")
    small = {"model.name": "mlp", "model.hidden": (4,), "client_optimizer": "sgd"}
    small |= {"cohort_size": 2, "batch_size": 5, "local_steps": 3, "hparams.client_lr": 0.01}
    config.update_from_flattened_dict(small)
    loaded = load(root)
    whole = loaded.data._replace(
        train=written_out(loaded.data.train),
        evals={part: written_out(own) for part, own in loaded.data.evals.items()},
    )
    experiment = build_experiment(config, loaded)
    program = make_program(
        experiment.build, experiment.model, cohort_size=2, block=4, group=group
    )
    key, hparams = jax.random.key(0), {"client_lr": jnp.float32(0.01)}
    told = []
    for data in (loaded.data, whole):
        state = program.start(key, hparams, data)
        state, log = program.advance(state, key, hparams, data, jnp.int32(3))
        told.append((state, log, program.evaluate(state, key, hparams, data)))
    for ours, theirs in zip(*map(jax.tree.leaves, told), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_newcomers_and_nearest_clients_are_found_among_series(root):
    """Sensors 0 and 1 tell nearly the same, and so do 2 and 3."""
    table = speeds()
    table[:, 1], table[:, 3] = table[:, 0] + 0.1, table[:, 2] + 0.1
    table[:, 2:] *= 0.5
    write_series(root / "metr-la/metr-la.h5", table)
    loaded = load(root, data__graph="knn", data__neighbours=1, new_clients__fraction=0.25)
    assert loaded.new_clients == 1 and loaded.data.train.series.shape[0] == 3
    near = dense(loaded.everyone.graph)
    names = [int(SENSORS.index(client)) for client in loaded.clients]
    joined = {frozenset((names[i], names[j])) for i, j in zip(*np.nonzero(near), strict=True)}
    assert joined == {frozenset((0, 1)), frozenset((2, 3))}


def test_a_straight_line_is_forecast_by_regression_and_not_by_persistence(tmp_path):
    """A ramp that every sensor climbs at its own pace."""
    ramp = 20 + np.arange(STEPS)[:, None] * np.array([0.1, 0.2, 0.3, 0.4])
    write_series(tmp_path / "metr-la/metr-la.h5", ramp)
    write_matrix(tmp_path / "metr-la/adj_mx.pkl")
    loaded = load(tmp_path)
    config = base.get_config()
    config.model.name, config.model.hidden, config.cohort_size = "gru", (3,), 2
    rows = forecast_rows(loaded, build_experiment(config, loaded).model.task)
    still, line = (row["errors"]["60 min"] for row in rows)
    np.testing.assert_allclose(still["mae"], 12 * 0.25, rtol=1e-4)
    assert line["mae"] < 1e-2
