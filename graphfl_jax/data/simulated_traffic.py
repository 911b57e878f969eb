"""Simulated traffic: speeds on a random network of motorways.

Motorways are winding lines in the plane, with two carriageways and a sensor about every
kilometre. Two lines that come close have an interchange. The speed of a sensor is its free
speed, reduced slightly by night and by traffic volume, and reduced by jams. Each carriageway
has places where jams begin in the rush hours. Time and depth of a jam vary from day to day, and
jams are weaker at weekends. A jam grows and dissolves against the direction of travel at
18 km/h, the speed of measured jams (Kerner. The Physics of Traffic. Springer 2004), and becomes
weaker upstream. Accidents cause jams at random times. The noise is autocorrelated over minutes.
The constants are rounded values for loop detectors in California, and of no data set in
particular.
"""

from typing import NamedTuple

import numpy as np

HOUR = 60 * 60 * 10**9  # nanoseconds
WAVE = 18.0  # km/h, speed at which the edge of a jam travels upstream
KNOWN = 10.0  # km, longest distance by road that is given
NEAR = 2.0  # km, largest gap between lines with an interchange
RAMP = 0.5  # km, length of an interchange
TURN = 3.0  # km, length of a turn to the other carriageway
PER_LINE = 24  # sensors of a line


class Traffic(NamedTuple):
    """Speeds of sensors."""

    sensors: list[str]  # N ids
    times: np.ndarray  # [T] int64, ns since 1970
    values: np.ndarray  # [N, T] float32, miles per hour; 0 is a missing reading
    # [N, N] metres by road from row to column, infinite if far; of a random network
    distances: np.ndarray | None = None


def simulate(generator_seed, *, sensors, steps, first, step) -> Traffic:
    """Simulates traffic on a random network.

    Args:
      generator_seed: of all random draws.
      sensors: N, at least 2.
      steps: T, at least 1.
      first: time of the first step, in ns since 1970.
      step: time between two steps, in ns.

    Raises:
      ValueError: there are fewer than two sensors, which have no distances.
    """
    if sensors < 2:
        raise ValueError(
            f"data.sensors={sensors} is too small for simulated traffic; set "
            "--config.data.sensors=2 or more, or to 0 for all"
        )
    rng = np.random.default_rng(generator_seed)
    network = _network(rng, sensors)
    times = first + step * np.arange(steps, dtype=np.int64)
    values = _speeds(rng, network, times / HOUR)
    return Traffic(
        [f"sensor {i}" for i in range(sensors)], times, values, 1000 * _road_distances(network)
    )


def _network(rng, sensors):
    """Random winding lines, each with two carriageways.

    For each sensor: the number of its carriageway [N], its kilometre in the direction of travel
    [N], and its place [N, 2] in km.
    """
    carriageway, along, place = [], [], []
    lines = -(-sensors // PER_LINE)
    size = 7 * np.sqrt(lines)  # km, side of the area
    for line in range(lines):
        count = min(PER_LINE, sensors - line * PER_LINE)
        kilometres = np.cumsum(rng.uniform(0.4, 1.2, count))
        heading = rng.uniform(0, 2 * np.pi) + np.cumsum(rng.normal(0, 0.15, count))
        steps = np.diff(kilometres, prepend=0)[:, None]
        path = np.cumsum(steps * np.stack([np.cos(heading), np.sin(heading)], 1), axis=0)
        path += rng.uniform(0, size, 2) - path.mean(axis=0)
        back = np.arange(count) % 2
        carriageway.append(2 * line + back)
        along.append(np.where(back, kilometres[-1] - kilometres, kilometres))
        place.append(path)
    return tuple(np.concatenate(part) for part in (carriageway, along, place))


def _road_distances(network):
    """Shortest distances by road [N, N] in km: ahead, over interchanges, and by turns."""
    from scipy.sparse import csgraph, csr_matrix

    way, along, place = network
    apart = np.linalg.norm(place[:, None] - place[None], axis=-1)
    ahead = along[None] - along[:, None]
    same_way, same_line = way[:, None] == way, way[:, None] // 2 == way // 2
    lengths = np.where(same_way & (ahead > 0), ahead, np.inf)
    lengths = np.where(same_line & ~same_way, apart + TURN, lengths)
    lengths = np.where(~same_line & (apart < NEAR), apart + RAMP, lengths)
    roads = csr_matrix(np.where(np.isfinite(lengths), np.maximum(lengths, 1e-3), 0.0))
    shortest = csgraph.shortest_path(roads, method="D")
    return np.where(shortest <= KNOWN, shortest, np.inf)


def _speeds(rng, network, hours):
    """Speeds [N, T] at `hours` [T] since 1970-01-01, which was a Thursday."""
    lost = _jam_losses(rng, network, hours)
    free = rng.normal(65, 3, (len(lost), 1))  # [N, 1]
    hour = hours % 24
    night = 2.0 * (hour < 5)
    volume = np.where(_is_weekend(hours // 24), 0.6, 1.0) * np.exp(
        -np.square((hour - 14) / 6.0)
    )
    speeds = (free - night - 3.0 * volume) * (1 - lost)
    noise = rng.standard_normal(lost.shape).astype(np.float32)
    memory = 0.7  # autocorrelation of a step
    for t in range(1, len(hours)):
        noise[:, t] = memory * noise[:, t - 1] + np.sqrt(1 - memory**2) * noise[:, t]
    speeds += (1.5 + 6.0 * lost) * noise
    return np.clip(speeds, 3.0, 75.0).astype(np.float32)


def _is_weekend(day):
    return (day + 3) % 7 >= 5


def _jam_losses(rng, network, hours):
    """The shares of their speed that sensors lose in jams: [N, T]."""
    way, along, _ = network
    lost = np.zeros((len(way), len(hours)), np.float32)
    days = np.unique(np.floor(hours / 24).astype(int))
    for number in np.unique(way):
        sensors = np.flatnonzero(way == number)
        places, length = along[sensors], along[sensors].max()
        here = lost[sensors]
        for rush in (8.0, 17.5, 8.0, 17.5):
            # One direction is busy in the morning, the other one in the evening.
            busy = 1.0 if (number % 2 == 0) == (rush < 12) else 0.4
            where, peak = rng.uniform(0.3, 1.0) * length, rush + rng.normal(0, 0.4)
            lasts, reach = rng.uniform(1.5, 3.5), rng.uniform(3.0, 12.0)
            for day in days:
                quiet = 0.35 if _is_weekend(day) else 1.0
                depth = np.clip(quiet * busy * rng.normal(0.85, 0.2), 0, 0.9)
                begin = 24 * day + peak - lasts / 2 + rng.normal(0, 0.25)
                end = begin + lasts * rng.uniform(0.8, 1.2)
                _add_jam(here, hours, where - places, begin, end, depth, reach)
        for _ in range(rng.poisson(len(days) / 7)):  # accidents
            begin = 24 * days[0] + rng.uniform(0, 24 * len(days))
            where, depth = rng.uniform(0, length), rng.uniform(0.3, 0.8)
            end = begin + rng.uniform(0.3, 1.0)
            _add_jam(here, hours, where - places, begin, end, depth, 3.0)
        lost[sensors] = here
    return lost


def _add_jam(lost, hours, upstream, begin, end, depth, reach):
    """Adds a jam to the shares `lost` [n, T] of the sensors of a carriageway.

    Args:
      upstream: [n] km from a sensor to the place of the jam, in the direction of travel.
      begin: hours since 1970, as `end`.
      depth: largest share that is lost.
      reach: km over which the jam becomes weaker.
    """
    late = np.maximum(upstream, 0) / WAVE  # [n] hours
    share = depth * np.exp(-np.maximum(upstream, 0) / reach)
    share = np.where(upstream < -0.3, 0.0, share)
    low, high = np.searchsorted(hours, [begin - 0.5, end + late.max() + 0.5])
    if low == high:
        return
    now = hours[low:high]
    on = 1 / (1 + np.exp(-(now - (begin + late)[:, None]) / 0.12))
    off = 1 / (1 + np.exp((now - (end + late)[:, None]) / 0.18))
    lost[:, low:high] = np.maximum(lost[:, low:high], share[:, None] * on * off)
