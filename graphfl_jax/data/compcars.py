"""CompCars: photographs of cars of four body types, one client a model year and viewpoint.

The photographs are those of Yang et al., A Large-Scale Car Dataset for Fine-Grained
Categorization and Verification, CVPR 2015; the list of those in use, with year, viewpoint and
type of each, is that of Mancini et al., AdaGraph: Unifying Predictive and Continuous Domain
Adaptation through Graphs, CVPR 2019. Viewpoints are numbered from the front over the side to
the rear.
"""

import re
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphfl_jax.data import drawn_cars, federation, photographs, relations

YEARS = (2009, 2010, 2011, 2012, 2013, 2014)
VIEWPOINTS = (1, 2, 3, 4, 5)  # front, front-side, side, rear-side, rear
CLIENTS = tuple((year, viewpoint) for year in YEARS for viewpoint in VIEWPOINTS)
TYPES = drawn_cars.TYPES
OFFICIAL = 24151  # images of the published list

_LIST = "car-images.txt"
_LINE = re.compile(r"([\w./-]+) (\d+)-(\d+) (\d+)")
_SOURCES = ("auto", "real", "simulated")
_SMALLEST = 8  # pixels

# Whether two clients are joined, by how many years and how many viewpoints they are apart.
_RELATIONS = {
    "nearby": lambda years, views: years <= 1 and views <= 1,
    "adjacent": lambda years, views: years + views == 1,
    "same": lambda years, views: years == 0 or views == 0,
    "either": lambda years, views: years <= 1 or views <= 1,
}


def compcars(
    *, root, source, path, image_size, car_relations, seed, val_fraction, generator_seed
) -> federation.Federation:
    """Loads CompCars, or draws cars from `generator_seed`: 30 clients, RGB images in uint8.

    The list is at `path`, or car-images.txt of the folder compcars in `root` where `path` is
    empty; photographs lie as released, compcars/image/MAKE/MODEL/YEAR/FILE.jpg in `root`. They
    are squashed to squares of `image_size` pixels (see `photographs`) and kept in the folder
    compcars. `source` is "real", "simulated" or "auto": real if list and photographs are there.
    `car_relations` joins two clients

    "nearby"
        whose years are equal or consecutive, and whose viewpoints are (89 edges);
    "adjacent"
        of which one is equal and the other consecutive (49);
    "same"
        of equal years or equal viewpoints (135);
    "either"
        whose years, or whose viewpoints, are equal or consecutive (315).
    """
    if image_size < _SMALLEST:
        raise ValueError(
            f"compcars: data.image_size={image_size} is too small for a car; set it to "
            f"{_SMALLEST} or more."
        )
    graph = car_graph(car_relations)
    folder = Path(root) / "compcars"
    file = _find(folder, source, path)
    if file:
        photos = read_list(file)
        pixels = _photographs(folder, file, photos, image_size)
        types = np.array([photo.type for photo in photos])
        counts = [sum(photo.client == client for photo in photos) for client in CLIENTS]
        ends = np.cumsum(counts)[:-1]
        x, y = np.split(pixels, ends), np.split(types, ends)
    else:
        x, y = _simulated(generator_seed, image_size)
    loaded = federation.federate(
        [f"{year} view {viewpoint}" for year, viewpoint in CLIENTS],
        x=x,
        y=y,
        graph=graph,
        task="classification",
        name="compcars",
        source="real" if file else "simulated",
        val_fraction=val_fraction,
        seed=seed,
        outputs=TYPES,
    )
    if file and len(types) < OFFICIAL:
        loaded = loaded._replace(extent=f"{len(types)} of {OFFICIAL} images")
    return loaded


def car_graph(rule):
    """Joins the clients on the grid of years and viewpoints by one of the rules."""
    if rule not in _RELATIONS:
        raise ValueError(_unknown("car_relations", rule, _RELATIONS))
    edges = [
        (i, j)
        for j, (year, viewpoint) in enumerate(CLIENTS)
        for i, (other, seen) in enumerate(CLIENTS[:j])
        if _RELATIONS[rule](abs(year - other), abs(viewpoint - seen))
    ]
    return relations.from_edges(len(CLIENTS), edges)


class Photo(NamedTuple):
    """A line of the list."""

    client: tuple[int, int]  # year, viewpoint
    file: str  # MAKE/MODEL/YEAR/FILE.jpg
    type: int  # from 0
    line: int  # number in the list


def read_list(path) -> list[Photo]:
    """Reads the list `PATH YEAR-VIEWPOINT TYPE`, a line a photograph, ordered by client."""
    lines = {}
    # Latin-1 reads any bytes, so that a file of another kind is refused below like the rest.
    for number, line in enumerate(Path(path).read_text("latin1").splitlines(), start=1):
        photo = _parse(path, number, line)
        if photo.file in lines:
            raise ValueError(
                f"compcars: {path}, line {number} lists {photo.file}, which line "
                f"{lines[photo.file].line} does; remove one of them."
            )
        lines[photo.file] = photo
    photos = sorted(lines.values(), key=lambda photo: (photo.client, photo.line))
    absent = sorted(set(CLIENTS) - {photo.client for photo in photos})
    if absent:
        year, viewpoint = absent[0]
        raise ValueError(
            f"compcars: {path} has no images of {len(absent)} of the {len(CLIENTS)} clients, "
            f"first {year}-{viewpoint}; use the whole {_LIST} of AdaGraph."
        )
    return photos


def _parse(path, number, line):
    match = _LINE.fullmatch(line.rstrip())
    parts = match[1].split("/")[-4:] if match else ()
    if len(parts) < 4 or not all(part.strip(".") for part in parts):
        raise ValueError(
            f"compcars: {path}, line {number} is not MAKE/MODEL/YEAR/FILE.jpg "
            f"YEAR-VIEWPOINT TYPE; use {_LIST} of AdaGraph."
        )
    year, viewpoint, label = (int(field) for field in match.groups()[1:])
    for field, value, known in (
        ("year", year, YEARS),
        ("viewpoint", viewpoint, VIEWPOINTS),
        ("type", label, range(1, TYPES + 1)),
    ):
        if value not in known:
            raise ValueError(
                f"compcars: {path}, line {number} has {field} {value}, which is not one of "
                f"{known[0]} to {known[-1]}; correct it."
            )
    return Photo((year, viewpoint), "/".join(parts), label - 1, number)


def _find(folder, source, path):
    """Returns the list to read, or None where cars are to be drawn."""
    if source not in _SOURCES:
        raise ValueError(_unknown("source", source, _SOURCES))
    if path and source == "simulated":
        raise ValueError(
            f"compcars: data.path={str(path)!r} is not read with data.source='simulated'; "
            "leave data.path empty or set data.source=real."
        )
    if path and not Path(path).is_file():
        raise FileNotFoundError(f"compcars: data.path={str(path)!r} is no file; correct it.")
    if source == "simulated":
        return None
    file = Path(path) if path else folder / _LIST
    if not file.is_file():
        absent = f"no file {file}; put there {_LIST} of AdaGraph (CVPR 2019)"
    elif not (folder / "image").is_dir():
        absent = f"no folder {folder / 'image'}; put there the images of CompCars (CVPR 2015)"
    else:
        return file
    if source == "real" or path:
        raise FileNotFoundError(f"compcars: {absent}, or set data.source=simulated.")
    warnings.warn(f"compcars: {absent}. Until then cars are drawn.", stacklevel=2)
    return None


def _photographs(folder, file, photos, size):
    for photo in photos:
        if not (folder / "image" / photo.file).is_file():
            raise FileNotFoundError(
                f"compcars: no image {folder / 'image' / photo.file}, which is in line "
                f"{photo.line} of {file}; put the whole tree of CompCars there, or leave the "
                "line out of a list of your own at data.path."
            )
    names = [photo.file for photo in photos]
    return photographs.squares(
        folder / "image", names, size=size, cache=folder / f"images-{size}.npy"
    )


def _simulated(generator_seed, image_size):
    if generator_seed < 0:
        raise ValueError(
            f"data.generator_seed={generator_seed} is negative; set it to zero or more."
        )
    drawn = [
        drawn_cars.draw(
            np.random.default_rng([generator_seed, year, viewpoint]),
            year=year - YEARS[0],
            view=viewpoint - VIEWPOINTS[0],
            image_size=image_size,
        )
        for year, viewpoint in CLIENTS
    ]
    return zip(*drawn, strict=True)


def _unknown(field, value, accepted):
    return f"compcars: data.{field}={value!r} is not known; use one of {', '.join(accepted)}."
