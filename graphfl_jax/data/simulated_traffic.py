"""Traffic that was never measured: speeds on a drawn network of motorways.

Motorways are winding lines across a plain, with a carriageway each way and a sensor every
kilometre or so; where two lines come close there is an interchange. A sensor's speed is its
free speed, less a little at night, less what congestion takes. Each carriageway has places
where traffic breaks down at rush hour, at its own hour and to its own depth on every day, less
at weekends; the jam grows and dissolves against the direction of travel, at the 18 km/h of
measured jams (Kerner. The Physics of Traffic. Springer 2004), and gets shallower on its way.
Accidents do the same at any hour. Noise has a memory of minutes. Figures are in round numbers
those of loop detectors in California, and no data set in particular.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csgraph, csr_matrix

HOUR = 60 * 60 * 10**9  # nanoseconds
WAVE = 18.0  # km/h at which the edge of a jam travels upstream
KNOWN = 10.0  # km, distances beyond which are not listed
NEAR = 2.0  # km between lines that have an interchange
RAMP = 0.5  # km that an interchange adds
TURN = 3.0  # km to turn back on the other carriageway
PER_LINE = 24  # sensors


class Traffic(NamedTuple):
    """A drawn network, and what its sensors tell."""

    sensors: list[str]  # N ids
    times: np.ndarray  # [T] int64, ns since 1970
    values: np.ndarray  # [N, T] float32, miles per hour; 0 is no reading
    distances: np.ndarray  # [N, N] metres by road from one to another; infinite if far


class _Network(NamedTuple):
    carriageway: np.ndarray  # [N] number
    along: np.ndarray  # [N] km in the direction of travel
    place: np.ndarray  # [N, 2] km


def simulate(generator_seed, *, sensors, steps, first, step) -> Traffic:
    """Draws a network with its traffic.

    Args:
      generator_seed: of everything drawn.
      sensors: N.
      steps: T.
      first: the first time, ns since 1970.
      step: between two times, ns.
    """
    for field, value, least in (
        ("generator_seed", generator_seed, 0),
        ("sensors", sensors, 2),
        ("steps", steps, 1),
    ):
        if value < least:
            raise ValueError(f"data.{field}={value} must be at least {least}; set it so.")
    rng = np.random.default_rng(generator_seed)
    network = _network(rng, sensors)
    times = first + step * np.arange(steps, dtype=np.int64)
    values = _speeds(rng, network, times / HOUR)
    return Traffic(
        [f"sensor {i}" for i in range(sensors)], times, values, 1000 * _by_road(network)
    )


def _network(rng, sensors):
    """Winding lines, each with carriageways there and back."""
    carriageway, along, place = [], [], []
    lines = -(-sensors // PER_LINE)
    plain = 7 * np.sqrt(lines)  # km across
    for line in range(lines):
        count = min(PER_LINE, sensors - line * PER_LINE)
        kilometres = np.cumsum(rng.uniform(0.4, 1.2, count))
        heading = rng.uniform(0, 2 * np.pi) + np.cumsum(rng.normal(0, 0.15, count))
        steps = np.diff(kilometres, prepend=0)[:, None]
        path = np.cumsum(steps * np.stack([np.cos(heading), np.sin(heading)], 1), axis=0)
        path += rng.uniform(0, plain, 2) - path.mean(axis=0)
        back = np.arange(count) % 2
        carriageway.append(2 * line + back)
        along.append(np.where(back, kilometres[-1] - kilometres, kilometres))
        place.append(path)
    return _Network(*(np.concatenate(part) for part in (carriageway, along, place)))


def _by_road(network):
    """Shortest ways by road [N, N] in km: ahead, over interchanges, and by turning back."""
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
    way, along, _ = network
    sensors, steps = len(way), len(hours)
    day, hour = np.floor(hours / 24).astype(int), hours % 24
    weekend = (day + 3) % 7 >= 5
    lost = np.zeros((sensors, steps), np.float32)  # share of the speed

    def jam(members, where, begin, end, depth, reach):
        """A jam from `begin` to `end` (hours since 1970) at `where` on a carriageway."""
        upstream = where - along[members]  # km
        late = np.maximum(upstream, 0) / WAVE
        share = depth * np.exp(-np.maximum(upstream, 0) / reach)
        share = np.where(upstream < -0.3, 0.0, share)
        low, high = np.searchsorted(hours, [begin - 0.5, end + late.max() + 0.5])
        if low == high:
            return
        now = hours[low:high]
        on = 1 / (1 + np.exp(-(now - (begin + late)[:, None]) / 0.12))
        off = 1 / (1 + np.exp((now - (end + late)[:, None]) / 0.18))
        here = lost[members, low:high]
        lost[members, low:high] = np.maximum(here, share[:, None] * on * off)

    days = np.unique(day)
    for number in np.unique(way):
        members = np.flatnonzero(way == number)
        length = along[members].max()
        for rush in (8.0, 17.5, 8.0, 17.5):
            # Into town in the morning, out of it in the evening.
            busy = 1.0 if (number % 2 == 0) == (rush < 12) else 0.4
            where, peak = rng.uniform(0.3, 1.0) * length, rush + rng.normal(0, 0.4)
            lasts, reach = rng.uniform(1.5, 3.5), rng.uniform(3.0, 12.0)
            for d in days:
                quiet = 0.35 if (d + 3) % 7 >= 5 else 1.0
                depth = np.clip(quiet * busy * rng.normal(0.85, 0.2), 0, 0.9)
                begin = 24 * d + peak - lasts / 2 + rng.normal(0, 0.25)
                jam(members, where, begin, begin + lasts * rng.uniform(0.8, 1.2), depth, reach)
        for _ in range(rng.poisson(len(days) / 7)):
            begin = 24 * days[0] + rng.uniform(0, 24 * len(days))
            where, depth = rng.uniform(0, length), rng.uniform(0.3, 0.8)
            jam(members, where, begin, begin + rng.uniform(0.3, 1.0), depth, 3.0)

    free = rng.normal(65, 3, (sensors, 1))
    night = 2.0 * (hour < 5)
    volume = np.where(weekend, 0.6, 1.0) * np.exp(-np.square((hour - 14) / 6.0))
    speeds = (free - night - 3.0 * volume) * (1 - lost)
    shocks = rng.standard_normal((sensors, steps)).astype(np.float32)
    memory = 0.7
    for t in range(1, steps):
        shocks[:, t] = memory * shocks[:, t - 1] + np.sqrt(1 - memory**2) * shocks[:, t]
    speeds += (1.5 + 6.0 * lost) * shocks
    return np.clip(speeds, 3.0, 75.0).astype(np.float32)
