"""TPT-48: monthly mean temperatures of the 48 contiguous states of the USA, one client each.

Temperatures are NOAA's nClimDiv (Vose et al., Improved historical temperature and precipitation
time series for U.S. climate divisions, J. Appl. Meteorol. Climatol. 53, 2014), file
climdiv-tmpcst. The task is that of Xu et al., Graph-Relational Domain Adaptation, ICLR 2022:
predict the next six months from six months. States with a common border are joined. Borders are
those of D. E. Knuth, The Stanford GraphBase (ACM Press, 1993), without the District of
Columbia. States that only touch in a corner, such as Arizona and Colorado, have no border.

The years are 1895 to 2019 for every release of the file. The protocols are

"years"
    One example per year, January-June to July-December, 125 per state. Each state is scaled to
    [0, 1] by its own extremes over all months and years.
"windows"
    133 windows of 12 months at stride 1 from 2008 to 2019, six months to the next six. All
    states are scaled by their common extremes. Neighbouring windows share 11 months, so after a
    random split the training windows contain most targets of the test windows: scores are far
    too good as forecasts, and comparable only with each other.

The extremes are taken over all examples, including test examples.
"""

import csv
import os
from pathlib import Path
from typing import Annotated

import numpy as np

from graphfl_jax.data import files, relations
from graphfl_jax.data.common_settings import DataPath, GeneratorSeed, ValFraction, forms
from graphfl_jax.data.federation import Federation, Positions, federate
from graphfl_jax.data.scaling import Scaling
from graphfl_jax.data.splits import RandomSplit
from graphfl_jax.settings import Choice, Switch

FIRST_YEAR, LAST_YEAR = 1895, 2019
WINDOWS_FROM = 2008  # first year of the protocol "windows"
with Path(__file__).with_name("us_states.csv").open(newline="") as _opened:
    # In the order of NOAA's numbers 001 to 048. A border is listed by one of its two states.
    _ROWS = tuple(csv.DictReader(_opened))
NUM_STATES = len(_ROWS)
STATES = tuple(row["name"] for row in _ROWS)
POSTAL = tuple(row["postal"] for row in _ROWS)  # codes
PLACES = np.array([(row["longitude"], row["latitude"]) for row in _ROWS], float)  # degrees
BORDERS = tuple(  # pairs of indices
    (i, POSTAL.index(other)) for i, row in enumerate(_ROWS) for other in row["borders"].split()
)

_URL = "https://www.ncei.noaa.gov/pub/data/cirs/climdiv/"
_FILE = "climdiv-tmpcst-v1.0.0-"
_MAX_BYTES = 20_000_000  # the file has 1.2 MB and grows by 10 kB per year
_ELEMENT = "02"  # mean temperature
_WIDTH, _KEY, _FIELD = 94, 10, 7  # characters of a line, of its key and of each month
_MISSING = -99.0  # a missing month is written as -99.90
_HOTTEST = 134.1  # degrees Fahrenheit, Death Valley in July 1913
_FILES = ("auto", "real", "file")  # sources that read a file


def tpt48(
    *,
    root,
    source: Annotated[str, forms("real", "file", "simulated")] = "auto",
    path: DataPath = "",
    protocol: Annotated[
        str,
        Choice(
            "Examples: years of 1895 to 2019, or overlapping windows of 2008 to 2019.",
            ("years", "windows"),
        ),
    ] = "years",
    download: Annotated[bool, Switch("Whether to download a missing file.")] = True,
    val_fraction: ValFraction = 0.0,
    generator_seed: GeneratorSeed = 0,
    seed,
) -> Federation:
    """Loads TPT-48 from NOAA's file, or simulates a climate.

    The files are in root/tpt48. The source "file" reads a file that is there, and "real"
    downloads a missing one if `download` allows it.

    Returns:
      48 clients, x [6] and y [6] float32 without units.

    Raises:
      ValueError: `path` is set for a source that reads no file, or the file is incomplete or
        has another format. One line with the file, the line and the state.
      FileNotFoundError: the file is missing and `source` does not allow simulated data.
    """
    first_year = FIRST_YEAR if protocol == "years" else WINDOWS_FROM
    file = _find_file(Path(root), source, path, download)
    if file:
        table = read_table(file, first_year=first_year)
    else:
        table = simulate(generator_seed)[:, first_year - FIRST_YEAR :]
    x, y, scaling = _cut(table, protocol)
    return federate(
        STATES,
        x=x,
        y=y,
        graph=border_graph(),
        task="regression",
        outputs=6,
        name="tpt48",
        source="real" if file else "simulated",
        split=RandomSplit(seed, val_fraction),
        loader_scaling=scaling,
        positions=Positions(("longitude", "latitude"), PLACES),
    )


def border_graph():
    """The graph of states with a common border: 48 clients, 105 undirected edges."""
    return relations.from_edges(NUM_STATES, BORDERS)


def read_table(path, *, first_year) -> np.ndarray:
    """Reads NOAA's text file: [48, years, 12] degrees Fahrenheit from `first_year` to 2019.

    A line has the number of a state (3 characters), a division (1), an element (2), a year (4)
    and twelve months (7 each). Numbers above 048 are Alaska and regions.

    Raises:
      ValueError: a line does not fit, a value is missing or impossible, or lines differ.
    """
    table = np.full((NUM_STATES, LAST_YEAR + 1 - first_year, 12), np.nan)
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        state, year, months = _parse(path, number, line.rstrip())
        if not (1 <= state <= NUM_STATES and first_year <= year <= LAST_YEAR):
            continue
        if min(months) <= _MISSING:
            month = months.index(min(months)) + 1
            raise ValueError(
                f"{path}: line {number}: {STATES[state - 1]} has no value for "
                f"month {month} of {year}; use a complete release"
            )
        if max(months) > _HOTTEST:
            raise ValueError(
                f"{path}: line {number}: {STATES[state - 1]} has {max(months):g} degrees "
                f"Fahrenheit in month {months.index(max(months)) + 1} of {year}, more than was "
                f"ever measured on Earth; use a complete release"
            )
        values = table[state - 1, year - first_year]
        if np.any(values != months) and not np.isnan(values).any():
            raise ValueError(
                f"{path}: line {number}: {STATES[state - 1]} has other values of "
                f"{year} than on a line before; use a complete release"
            )
        values[:] = months
    absent = np.argwhere(np.isnan(table).any(axis=2))
    if len(absent):
        state, year = absent[0]
        first = f"{STATES[state]} {first_year + year}"
        raise ValueError(
            f"{path}: the file is incomplete ({len(absent)} missing state-years, first "
            f"{first}); download it again from {_URL}"
        )
    return table


def simulate(generator_seed) -> np.ndarray:
    """Simulates a climate in the form of NOAA's table: [48, 125, 12] degrees Fahrenheit.

    The temperature of a month is the sum of a seasonal mean, which depends on the state's
    latitude, an anomaly, and independent noise of each state. The anomaly is smooth over the
    border graph, has an autocorrelation of 0.25 from month to month, and is larger in winter.
    The constants are rounded values of the real table.
    """
    latitude = PLACES[:, 1:]  # [48, 1]
    months = (LAST_YEAR + 1 - FIRST_YEAR) * 12
    # [months], 1 in July and -1 in January; months are counted from 0.
    season = np.cos(2 * np.pi * (np.arange(months) - 6) / 12)
    mean = 52.0 - 1.5 * (latitude - 39.0)
    swing = 22.0 + 0.9 * (latitude - 39.0)
    spread = 3.0 - 1.3 * season

    rng = np.random.default_rng(generator_seed)
    shocks = _smoothing() @ rng.standard_normal((NUM_STATES, months))  # [48, months]
    anomaly = np.empty_like(shocks)
    memory = 0.25  # autocorrelation of a month
    anomaly[:, 0] = shocks[:, 0]
    for month in range(1, months):
        # Scaled so that the anomaly of every month has variance 1.
        fresh = np.sqrt(1 - memory**2) * shocks[:, month]
        anomaly[:, month] = memory * anomaly[:, month - 1] + fresh
    independent = rng.standard_normal((NUM_STATES, months))
    fahrenheit = mean + swing * season + spread * anomaly + 0.5 * independent
    return fahrenheit.reshape(NUM_STATES, -1, 12)


def _smoothing():
    """A root of (I + 20 L)^-1 with rows scaled to norm 1; L is the border graph's Laplacian.

    It makes noise with a correlation that is high between neighbours and low at a distance.
    """
    graph = border_graph()
    laplacian = np.zeros((NUM_STATES, NUM_STATES))
    laplacian[graph.receivers, graph.senders] = -1
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    root = np.linalg.cholesky(np.linalg.inv(np.eye(NUM_STATES) + 20 * laplacian))
    return root / np.linalg.norm(root, axis=1, keepdims=True)


def _cut(table, protocol):
    """The inputs and targets of a protocol from [48, years, 12], [48, n, 6] each, scaled."""
    by_state = protocol == "years"
    axes = (1, 2) if by_state else None
    low, high = table.min(axes, keepdims=True), table.max(axes, keepdims=True)  # [K, 1, 1]
    scaled = (table - low) / (high - low)
    if not by_state:
        series = scaled.reshape(NUM_STATES, -1)  # [48, 144]
        scaled = np.lib.stride_tricks.sliding_window_view(series, 12, axis=1)  # [48, 133, 12]
    part = np.repeat(low[:, 0], 6, axis=1), np.repeat((high - low)[:, 0], 6, axis=1)
    clients = STATES if by_state else ()
    scaling = Scaling("minmax", clients, inputs=part, targets=part)
    return scaled[..., :6], scaled[..., 6:], scaling


def _find_file(root, source, path, download):
    """The file to read, or None if the climate is to be simulated."""
    files.check_path(path, source, reading=_FILES)
    if path:
        return Path(path)
    if source == "simulated":
        return None
    # A release is named by its date of eight digits, so the last by name is the newest.
    releases = filter(Path.is_file, root.glob(f"tpt48/{_FILE}????????"))
    file = max(releases, key=lambda path: path.name, default=None)
    why = ""
    if file is None and download and source != "file":
        try:
            file = _download(root)
        except (OSError, ValueError) as error:
            why = f" (download failed: {error})"
    if file is None:
        files.report_missing(
            "tpt48",
            f"no file {root / 'tpt48' / _FILE}YYYYMMDD{why}",
            f"put it there from {_URL}",
            folder=root / "tpt48",
            required=source != "auto",
            stand_in="the climate is simulated",
        )
    return file


def _download(root):
    """Downloads NOAA's current release into the folder tpt48 of `root`."""
    folder = root / "tpt48"
    # Other processes that start at the same time download the date and the file too.
    note = folder / f"procdate-{os.getpid()}.txt"
    files.fetch(_URL + "procdate.txt", note, max_bytes=1000)
    date = note.read_text("latin1").strip()
    note.unlink()
    if len(date) != 8 or not date.isdecimal():
        raise ValueError(
            f"{_URL}procdate.txt: the date is {date!r} and not YYYYMMDD; put a file "
            f"{_FILE}YYYYMMDD into {folder} by hand"
        )
    file = files.fetch(f"{_URL}{_FILE}{date}", folder / f"{_FILE}{date}", max_bytes=_MAX_BYTES)
    try:
        read_table(file, first_year=FIRST_YEAR)
    except ValueError:
        file.unlink(missing_ok=True)  # the next run must not read it
        raise
    return file


def _parse(path, number, line):
    """Reads one line: number of the state, year, twelve temperatures."""
    key, fields = line[:_KEY], [line[i : i + _FIELD] for i in range(_KEY, _WIDTH, _FIELD)]
    try:
        if len(line) != _WIDTH or not key.isdecimal():
            raise ValueError
        months = [float(field) for field in fields]
        if not np.isfinite(months).all():
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{path}: line {number} is not a key of {_KEY} digits and 12 numbers of {_FIELD} "
            f"characters; use {_FILE}YYYYMMDD from {_URL}"
        ) from None
    state, division, element, year = key[:3], key[3], key[4:6], key[6:]
    if (division, element) != ("0", _ELEMENT):
        raise ValueError(
            f"{path}: line {number}: state {state}, year {year} has division {division} and "
            f"element {element}, not 0 and {_ELEMENT} (mean temperature); use {_FILE}YYYYMMDD "
            f"from {_URL}"
        )
    return int(state), int(year), months
