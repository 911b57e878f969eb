"""TPT-48: NOAA's file, the two protocols, downloads, and the simulated climate."""

from contextlib import nullcontext

import numpy as np
import pytest

from graphfl_jax.data import tpt48


def load(**changes):
    return tpt48.tpt48(**{"root": "", "download": False, "seed": 0} | changes)


def all_examples(loaded):
    """The examples x and y [N, n, ...] of all splits, for clients of equal size."""
    parts = (loaded.data.train, *loaded.data.evals.values())
    return [np.concatenate([getattr(part, field) for part in parts], 1) for field in "xy"]


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(0).uniform(-20, 95, (48, 125, 12)).round(1)


@pytest.fixture
def lines(table):
    """NOAA's layout: 125 years of 48 states, and a line of Alaska, which is not read."""
    keys = [f"{state + 1:03}002{year}" for state in range(48) for year in range(1895, 2020)]
    months = ["".join(f"{t:7.2f}" for t in row) for row in table.reshape(-1, 12)]
    states = [key + row + "   " for key, row in zip(keys, months, strict=True)]
    return [*states, "0500021925" + "  30.00" * 12 + "   "]


def write_release(folder, lines):
    path = folder / "tpt48" / "climdiv-tmpcst-v1.0.0-20200106"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    return path


def test_table_is_read_as_written(tmp_path, table, lines):
    path = write_release(tmp_path, lines)
    np.testing.assert_array_equal(tpt48.read_table(path, first_year=1895), table)
    np.testing.assert_array_equal(tpt48.read_table(path, first_year=2008), table[:, 113:])


def test_newest_release_under_the_root_is_loaded(tmp_path, lines):
    older = write_release(tmp_path, lines).with_name("climdiv-tmpcst-v1.0.0-20190101")
    older.write_text("not read")
    assert load(root=tmp_path, source="real").source == "real"


def test_years_scale_each_state_by_its_own_extremes(tmp_path, table, lines):
    loaded = load(path=write_release(tmp_path, lines))
    years = np.concatenate(all_examples(loaded), -1)  # [48, 125, 12], shuffled in time
    assert years.shape == (48, 125, 12)
    np.testing.assert_array_equal(years.min((1, 2)), np.zeros(48))
    np.testing.assert_array_equal(years.max((1, 2)), np.ones(48))
    low, high = table.min((1, 2))[:, None], table.max((1, 2))[:, None]
    expected = (table.mean(1) - low) / (high - low)  # [48, 12], means over years
    np.testing.assert_allclose(years.mean(1), expected, rtol=1e-4)


def test_windows_have_one_scale_for_all_states():
    loaded = load(source="simulated", protocol="windows")
    windows = np.concatenate(all_examples(loaded), -1)
    assert windows.shape == (48, 133, 12) and (windows.min(), windows.max()) == (0, 1)
    assert len(np.unique(windows[0])) == 144  # the months of twelve years


def test_windows_are_months_in_a_row_from_2008_to_2019(monkeypatch):
    """State s has the temperature 100 s + m in month m from January 2008, so 4843 at most."""
    state, month = np.arange(48)[:, None], np.arange(-113 * 12, 12 * 12)
    table = np.float64(100 * state + month).reshape(48, 125, 12)
    monkeypatch.setattr(tpt48, "simulate", lambda generator_seed: table)
    loaded = load(source="simulated", protocol="windows")
    windows = 4843 * np.concatenate(all_examples(loaded), -1)  # [48, 133, 12], shuffled in time
    order = windows[..., 0].argsort(axis=1)
    windows = np.take_along_axis(windows, order[..., None], axis=1)
    expected = 100 * state[..., None] + np.arange(133)[:, None] + np.arange(12)
    np.testing.assert_allclose(windows, expected, atol=0.01)
    for offset, scale in (loaded.loader_scaling.inputs, loaded.loader_scaling.targets):
        np.testing.assert_array_equal(offset, np.zeros((1, 6)))
        np.testing.assert_array_equal(scale, np.full((1, 6), 4843))


@pytest.mark.parametrize(
    "number, change, named",
    [
        (7, lambda line: line[:50], "line 7 is not a key"),
        (8, lambda line: line.replace(".", "x"), "line 8 is not a key"),
        (9, lambda line: line[:10] + "    nan" + line[17:], "line 9 is not a key"),
        (126, lambda line: line[:4] + "01" + line[6:], "line 126: state 002, year 1895.*01"),
        (
            252,
            lambda line: line[:9] + "5" + line[10:],
            "line 252: Arkansas has other values of 1895 than on a line before",
        ),
        (
            250,
            lambda line: line[:17] + " -99.90" + line[24:],
            "line 250: Arizona .* month 2 of 2019",
        ),
        (
            251,
            lambda line: line[:24] + " 999.90" + line[31:],
            "line 251: Arkansas has 999.9 degrees .* month 3 of 1895, .* on Earth; use a",
        ),
    ],
)
def test_lines_of_another_format_are_refused(tmp_path, lines, number, change, named):
    lines[number - 1] = change(lines[number - 1])
    with pytest.raises(ValueError, match=f"20200106: {named}"):
        load(path=write_release(tmp_path, lines))


def test_a_line_that_is_given_twice_is_read(tmp_path, table, lines):
    path = write_release(tmp_path, [*lines, lines[7]])
    np.testing.assert_array_equal(tpt48.read_table(path, first_year=1895), table)


def test_a_mark_and_blank_last_lines_are_skipped(tmp_path, table, lines):
    path = write_release(tmp_path, [*lines, "", "  "])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    np.testing.assert_array_equal(tpt48.read_table(path, first_year=1895), table)


def test_truncated_table_is_refused(tmp_path, lines):
    with pytest.raises(ValueError, match="2 missing state-years, first Wyoming 2018"):
        load(path=write_release(tmp_path, lines[:-3]))


def test_missing_files_are_errors_only_if_required(default_root):
    with pytest.warns(UserWarning, match="no file .*, so the climate is simulated; put it"):
        assert load(root=default_root).source == "simulated"
    for source in ("real", "file"):
        with pytest.raises(FileNotFoundError, match="no file .*ncei.noaa.gov"):
            load(root=default_root, source=source)
    with pytest.raises(FileNotFoundError, match="absent.txt' is not a file"):
        load(root=default_root, path="absent.txt")
    with pytest.raises(ValueError, match="is not read with data.source='simulated'"):
        load(root=default_root, path="absent.txt", source="simulated")


@pytest.mark.parametrize(
    "served, source", [("all", "real"), ("incomplete", None), ("none", None)]
)
def test_only_complete_downloads_are_kept(default_root, lines, monkeypatch, served, source):
    def fetch(url, destination, *, max_bytes):
        if served == "none":
            raise OSError("no network")
        destination.parent.mkdir(parents=True, exist_ok=True)
        text = "\n".join(lines if served == "all" else lines[:99])
        destination.write_text("20260806\n" if url.endswith("procdate.txt") else text)
        return destination

    settings = {"root": default_root, "download": True}
    monkeypatch.setattr(tpt48.files, "fetch", fetch)
    warns = nullcontext() if source else pytest.warns(UserWarning, match="download failed")
    with warns:
        assert load(**settings).source == (source or "simulated")
    kept = [path.name for path in default_root.glob("tpt48/*")]
    assert kept == (["climdiv-tmpcst-v1.0.0-20260806"] if source else [])
    if source is None:
        with pytest.raises(
            FileNotFoundError, match="download failed: .*(no network|is incomplete)"
        ):
            load(**settings, source="real")


def test_several_processes_download_at_once(tmp_path, lines, monkeypatch):
    """While one has the date, another one starts, downloads everything and ends."""

    def fetch(url, destination, *, max_bytes):
        destination.parent.mkdir(exist_ok=True)
        dated = url.endswith("procdate.txt")
        destination.write_text("20260806\n" if dated else "\n".join(lines))
        if dated and others:
            pid = others.pop()
            with monkeypatch.context() as other:
                other.setattr("os.getpid", lambda: pid)
                tpt48._download(tmp_path)
        return destination

    others = [7]  # ids of processes
    monkeypatch.setattr(tpt48.files, "fetch", fetch)
    assert load(root=tmp_path, download=True).source == "real"
    assert [path.name for path in (tmp_path / "tpt48").iterdir()] == [
        "climdiv-tmpcst-v1.0.0-20260806"
    ]


def test_every_state_has_its_number_of_neighbours():
    """Counted on a map by land and rivers: Missouri and Tennessee have eight, Maine has one."""
    number = dict(AL=4, AZ=4, AR=6, CA=3, CO=6, CT=3, DE=3, FL=2, GA=5, ID=6, IL=5, IN=4)
    number |= dict(IA=6, KS=4, KY=7, LA=3, ME=1, MD=4, MA=5, MI=3, MN=4, MS=4, MO=8, MT=4)
    number |= dict(NE=6, NV=5, NH=3, NJ=3, NM=4, NY=5, NC=4, ND=3, OH=5, OK=6, OR=4, PA=6)
    number |= dict(RI=2, SC=2, SD=6, TN=8, TX=4, UT=5, VT=3, VA=5, WA=2, WV=5, WI=4, WY=6)
    degrees = np.bincount(np.ravel(tpt48.BORDERS), minlength=48)
    assert dict(zip(tpt48.POSTAL, degrees.tolist(), strict=True)) == number
    pairs = {frozenset((tpt48.POSTAL[i], tpt48.POSTAL[j])) for i, j in tpt48.BORDERS}
    assert len(pairs) == len(tpt48.BORDERS) == sum(number.values()) / 2 == 105
    # Of the four states around a corner, two pairs only touch.
    assert not pairs & {frozenset(("AZ", "CO")), frozenset(("NM", "UT"))}


def test_borders_are_equal_to_the_published_ones(data_root):
    postal = tpt48.POSTAL
    ours = {frozenset((postal[i], postal[j])) for i, j in tpt48.BORDERS}
    pairs = (data_root / "tpt48" / "usa_map.txt").read_text().split("\n")
    assert ours == {frozenset(pair.split()) for pair in pairs if pair and "DC" not in pair}
    assert len(tpt48.BORDERS) == 105


def test_official_table_has_the_known_statistics(data_root):
    (path,) = data_root.glob("tpt48/climdiv-tmpcst-*-20200106")
    table = tpt48.read_table(path, first_year=1895)
    assert (table.min(), table.max()) == (-14.1, 89.2)
    recent = table[:, 2008 - 1895 :]
    assert (recent.min(), recent.mean().round(3), recent.std().round(3)) == (
        -2.7,
        52.899,
        17.745,
    )


def test_simulated_climate_is_realistic():
    table = tpt48.simulate(0)
    assert table.shape == (48, 125, 12)
    latitude = tpt48.PLACES[:, 1]
    assert np.corrcoef(latitude, table.mean((1, 2)))[0, 1] < -0.95
    assert (table.mean((0, 1)).argmax(), table.mean((0, 1)).argmin()) == (6, 0)  # July, January
    correlation = np.corrcoef((table - table.mean(1, keepdims=True)).reshape(48, -1))
    graph = tpt48.border_graph()
    assert correlation[graph.receivers, graph.senders].mean() > correlation.mean() + 0.2
