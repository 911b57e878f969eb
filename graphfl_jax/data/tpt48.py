"""TPT-48: monthly mean temperatures of the 48 contiguous states of the USA, one client a state.

Temperatures are NOAA's nClimDiv (Vose et al., Improved historical temperature and precipitation
time series for U.S. climate divisions, J. Appl. Meteorol. Climatol. 53, 2014), file
climdiv-tmpcst; states are joined where they share a border. The task is that of Xu et al.,
Graph-Relational Domain Adaptation, ICLR 2022: from six months to the next six.
"""

import warnings
from pathlib import Path

import numpy as np

from graphfl_jax.data import federation, files, relations, us_states

FIRST_YEAR, LAST_YEAR = 1895, 2019
WINDOWS_FROM = 2008  # first year of the protocol "windows"
NUM_STATES = len(us_states.STATES)

_URL = "https://www.ncei.noaa.gov/pub/data/cirs/climdiv/"
_FILE = "climdiv-tmpcst-v1.0.0-"
_MAX_BYTES = 20_000_000  # the file has 1.2 MB and grows by 10 kB a year
_ELEMENT = "02"  # mean temperature
_WIDTH, _KEY, _FIELD = 94, 10, 7  # characters of a line, of its key and of each month
_MISSING = -99.0  # a month that is not there reads -99.90
_SOURCES = ("auto", "real", "file", "simulated")
_PROTOCOLS = ("years", "windows")


def tpt48(
    *, root, source, path, protocol, download, seed, val_fraction, generator_seed
) -> federation.Federation:
    """Loads TPT-48 from NOAA's file, or simulates a climate from `generator_seed`.

    `source` is "file" (at `path`, or the newest under tpt48 in `root`), "real" (that, else
    NOAA's current release where `download` allows), "auto" (that, else simulated) or
    "simulated". The data are of 1895 to 2019, whatever the release. `protocol` is

    "years"
        One example a year: from January-June to July-December, 125 a state. Each state is
        scaled to [0, 1] by its own extremes of all months and years.
    "windows"
        133 windows of 12 months at stride 1 from 2008 to 2019: from six months to the next six,
        all states scaled by their common extremes. Neighbouring windows share 11 months, so
        under a random split training windows contain most of what test windows ask for: scores
        are far too good as forecasts, and comparable with each other only.

    The extremes are those of all examples, test examples included.
    """
    if protocol not in _PROTOCOLS:
        raise ValueError(_unknown("protocol", protocol, _PROTOCOLS))
    first_year = FIRST_YEAR if protocol == "years" else WINDOWS_FROM
    file = _find(Path(root), source, path, download)
    if file:
        table = read_table(file, first_year=first_year)
    else:
        table = simulate(generator_seed)[:, first_year - FIRST_YEAR :]
    x, y = _years(table) if protocol == "years" else _windows(table)
    return federation.federate(
        [name for name, _, _ in us_states.STATES],
        x=x,
        y=y,
        graph=border_graph(),
        task="regression",
        name="tpt48",
        source="real" if file else "simulated",
        val_fraction=val_fraction,
        seed=seed,
        outputs=6,
    )


def border_graph():
    """Joins the states that share a border: 48 clients, 105 undirected edges."""
    return relations.from_edges(NUM_STATES, us_states.BORDERS)


def read_table(path, *, first_year) -> np.ndarray:
    """Reads NOAA's text: [48, years, 12] degrees Fahrenheit from `first_year` to 2019.

    A line has a state code (3 characters), a division (1), an element (2), a year (4) and
    twelve months (7 each). Codes above 048 are Alaska and regions.
    """
    table = np.full((NUM_STATES, LAST_YEAR + 1 - first_year, 12), np.nan)
    # Latin-1 reads any bytes, so that a file of another kind is refused below like the rest.
    for number, line in enumerate(Path(path).read_text("latin1").splitlines(), start=1):
        state, year, months = _parse(path, number, line.rstrip())
        if not (1 <= state <= NUM_STATES and first_year <= year <= LAST_YEAR):
            continue
        if min(months) <= _MISSING:
            month = months.index(min(months)) + 1
            raise ValueError(
                f"tpt48: {path}, line {number}: {us_states.STATES[state - 1][0]} has no value "
                f"for month {month} of {year}; use a complete release."
            )
        table[state - 1, year - first_year] = months
    absent = np.argwhere(np.isnan(table).any(axis=2))
    if len(absent):
        state, year = absent[0]
        first = f"{us_states.STATES[state][0]} {first_year + year}"
        raise ValueError(
            f"tpt48: {path} lacks {len(absent)} state-years, first {first}; the file is "
            f"cut short, download it again from {_URL}."
        )
    return table


def simulate(generator_seed) -> np.ndarray:
    """Draws a climate in place of NOAA's table: [48, 125, 12] degrees Fahrenheit.

    A month is its normal, which follows from the state's latitude, plus an anomaly: noise that
    is smooth over the border graph and remembers a quarter of last month, larger in winter,
    plus noise of the state's own. The figures are the table's in round numbers.
    """
    if generator_seed < 0:
        raise ValueError(
            f"data.generator_seed={generator_seed} is negative; set it to zero or more."
        )
    latitude = np.array([latitude for _, _, latitude in us_states.STATES])[:, None]  # [48, 1]
    months = (LAST_YEAR + 1 - FIRST_YEAR) * 12
    # One in mid-July and minus one in mid-January, months being counted from 0.
    season = np.cos(2 * np.pi * (np.arange(months) - 6) / 12)
    mean = 52.0 - 1.5 * (latitude - 39.0)
    swing = 22.0 + 0.9 * (latitude - 39.0)
    spread = 3.0 - 1.3 * season

    rng = np.random.default_rng(generator_seed)
    shocks = _smoothing() @ rng.standard_normal((NUM_STATES, months))  # [48, months]
    anomaly = np.empty_like(shocks)
    memory = 0.25
    anomaly[:, 0] = shocks[:, 0]
    for month in range(1, months):
        # Scaled so that every month's anomaly has variance one.
        fresh = np.sqrt(1 - memory**2) * shocks[:, month]
        anomaly[:, month] = memory * anomaly[:, month - 1] + fresh
    own = rng.standard_normal((NUM_STATES, months))
    fahrenheit = mean + swing * season + spread * anomaly + 0.5 * own
    return fahrenheit.reshape(NUM_STATES, -1, 12)


def _smoothing():
    """A root of (I + 20 L)^-1 scaled to unit variances, L being the border graph's Laplacian.

    Neighbours correlate strongly, states far apart little.
    """
    graph = border_graph()
    laplacian = np.zeros((NUM_STATES, NUM_STATES))
    laplacian[graph.receivers, graph.senders] = -1
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    root = np.linalg.cholesky(np.linalg.inv(np.eye(NUM_STATES) + 20 * laplacian))
    return root / np.linalg.norm(root, axis=1, keepdims=True)


def _years(table):
    low = table.min(axis=(1, 2), keepdims=True)  # [48, 1, 1]
    high = table.max(axis=(1, 2), keepdims=True)
    scaled = (table - low) / (high - low)
    return scaled[..., :6], scaled[..., 6:]  # [48, 125, 6] each


def _windows(table):
    scaled = (table - table.min()) / (table.max() - table.min())
    series = scaled.reshape(NUM_STATES, -1)  # [48, 144]
    windows = np.lib.stride_tricks.sliding_window_view(series, 12, axis=1)  # [48, 133, 12]
    return windows[..., :6], windows[..., 6:]


def _find(root, source, path, download):
    """Returns the file to read, or None where the climate is to be simulated."""
    if source not in _SOURCES:
        raise ValueError(_unknown("source", source, _SOURCES))
    if path:
        if source == "simulated":
            raise ValueError(
                f"tpt48: data.path={str(path)!r} is not read with data.source='simulated'; "
                "leave data.path empty or set data.source=file."
            )
        if not Path(path).is_file():
            raise FileNotFoundError(f"tpt48: data.path={str(path)!r} is no file; correct it.")
        return Path(path)
    if source == "simulated":
        return None
    # Releases end in a date of eight digits, so the last by name is the newest.
    file = files.locate(root, f"tpt48/{_FILE}????????")
    why = ""
    if file is None and download and source != "file":
        try:
            file = _download(root)
        except (OSError, ValueError) as error:
            why = f" (download failed: {error})"
    if file is None:
        absent = (
            f"tpt48: no file {root / 'tpt48' / _FILE}YYYYMMDD{why}; put it there from {_URL}"
        )
        if source != "auto":
            raise FileNotFoundError(f"{absent}, or set data.source=simulated.")
        warnings.warn(f"{absent}. Until then the climate is simulated.", stacklevel=2)
    return file


def _download(root):
    """Fetches NOAA's current release into the folder tpt48 of `root`."""
    folder = root / "tpt48"
    note = files.fetch(_URL + "procdate.txt", folder / "procdate.txt", max_bytes=1000)
    date = note.read_text("latin1").strip()
    note.unlink()
    if len(date) != 8 or not date.isdecimal():
        raise ValueError(
            f"tpt48: {_URL}procdate.txt says {date!r} and not YYYYMMDD; put a file "
            f"{_FILE}YYYYMMDD into {folder} by hand."
        )
    file = files.fetch(f"{_URL}{_FILE}{date}", folder / f"{_FILE}{date}", max_bytes=_MAX_BYTES)
    try:
        read_table(file, first_year=FIRST_YEAR)
    except ValueError:
        file.unlink()  # else the next run would take it for the user's own
        raise
    return file


def _parse(path, number, line):
    """Reads one line: state code, year, twelve temperatures."""
    key, fields = line[:_KEY], [line[i : i + _FIELD] for i in range(_KEY, _WIDTH, _FIELD)]
    try:
        if len(line) != _WIDTH or not key.isdecimal():
            raise ValueError
        months = [float(field) for field in fields]
        if not np.isfinite(months).all():
            raise ValueError
    except ValueError:
        raise ValueError(
            f"tpt48: {path}, line {number} is not a code of {_KEY} digits and 12 numbers of "
            f"{_FIELD} characters; use {_FILE}YYYYMMDD from {_URL}."
        ) from None
    state, division, element, year = key[:3], key[3], key[4:6], key[6:]
    if (division, element) != ("0", _ELEMENT):
        raise ValueError(
            f"tpt48: {path}, line {number}: state {state}, year {year} has division "
            f"{division} and element {element}, not 0 and {_ELEMENT} (mean temperature); use "
            f"{_FILE}YYYYMMDD."
        )
    return int(state), int(year), months


def _unknown(field, value, accepted):
    return f"tpt48: data.{field}={value!r} is not known; use one of {', '.join(accepted)}."
