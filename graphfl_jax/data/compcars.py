"""CompCars: images of cars of four body types, one client per model year and viewpoint.

The images are those of Yang et al., A Large-Scale Car Dataset for Fine-Grained Categorization
and Verification, CVPR 2015. The list of the images in use, with their years, viewpoints and
types, is that of Mancini et al., AdaGraph: Unifying Predictive and Continuous Domain Adaptation
through Graphs, CVPR 2019. Viewpoints are numbered from the front over the side to the rear.

The list is compcars/car-images.txt in the data folder, and the images are
compcars/image/MAKE/MODEL/YEAR/FILE.jpg, as released. Resized images are cached in compcars (see
`photographs`).
"""

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import common_settings, drawn_cars, files, photographs, relations
from graphfl_jax.data.federation import Federation, federate
from graphfl_jax.data.splits import RandomSplit
from graphfl_jax.memory import check_memory
from graphfl_jax.settings import Choice

YEARS = (2009, 2010, 2011, 2012, 2013, 2014)
VIEWPOINTS = (1, 2, 3, 4, 5)  # front, front-side, side, rear-side, rear
CLIENTS = tuple((year, viewpoint) for year in YEARS for viewpoint in VIEWPOINTS)
TYPES = drawn_cars.TYPES
OFFICIAL = 24151  # images in the published list

_LIST = "car-images.txt"
_LINE = re.compile(r"([\w./-]+) (\d+)-(\d+) (\d+)")

# Whether two clients are joined, by the differences of their years and their viewpoints.
_RELATIONS = {
    "nearby": lambda years, views: years <= 1 and views <= 1,  # 89 edges
    "adjacent": lambda years, views: years + views == 1,  # 49 edges
    "same": lambda years, views: years == 0 or views == 0,  # 135 edges
    "either": lambda years, views: years <= 1 or views <= 1,  # 315 edges
}


def compcars(
    *,
    root,
    source: Annotated[str, common_settings.forms("real", "simulated")] = "auto",
    path: common_settings.DataPath = "",
    image_size: common_settings.ImageSize = 64,
    car_relations: Annotated[
        str, Choice("Rule that joins clients by year and viewpoint.", tuple(_RELATIONS))
    ] = "nearby",
    val_fraction: common_settings.ValFraction = 0.0,
    generator_seed: common_settings.GeneratorSeed = 0,
    seed,
) -> Federation:
    """Loads CompCars, or draws simulated images of cars.

    Returns:
      30 clients, x [image_size, image_size, 3] uint8 (RGB), labels 0 to 3.

    Raises:
      ValueError: `path` is set for a source that reads no file, the list has a wrong line or
        no image of a client, or an image cannot be decoded. One line with file and line.
      FileNotFoundError: the list or an image is missing.
    """
    folder = Path(root) / "compcars"
    file = _find_list(folder, source, path)
    if file:
        x, y, extent = _read_photographs(folder, file, image_size)
    else:
        x, y, extent = *_simulate(generator_seed, image_size), ""
    return federate(
        [f"{year} view {viewpoint}" for year, viewpoint in CLIENTS],
        x=x,
        y=y,
        graph=car_graph(car_relations),
        task="classification",
        outputs=TYPES,
        name="compcars",
        source="real" if file else "simulated",
        split=RandomSplit(seed, val_fraction),
        extent=extent,
    )


def car_graph(rule):
    """The graph of the 30 clients by one of the rules of `compcars`."""
    edges = [
        (i, j)
        for j, (year, viewpoint) in enumerate(CLIENTS)
        for i, (year_i, viewpoint_i) in enumerate(CLIENTS[:j])
        if _RELATIONS[rule](abs(year - year_i), abs(viewpoint - viewpoint_i))
    ]
    return relations.from_edges(len(CLIENTS), edges)


class Photo(NamedTuple):
    """One line of the list."""

    client: tuple[int, int]  # year, viewpoint
    file: str  # MAKE/MODEL/YEAR/FILE.jpg
    type: int  # 0 to 3
    line: int  # line number, from 1


def read_list(path) -> list[Photo]:
    """Reads a list with lines `PATH YEAR-VIEWPOINT TYPE`; returns it ordered by client.

    Raises:
      ValueError: a line does not fit, repeats a file, or a client has no images.
    """
    lines = {}
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        photo = _parse(path, number, line)
        if photo.file in lines:
            raise ValueError(
                f"{path}: line {number} repeats {photo.file} of line "
                f"{lines[photo.file].line}; remove one of them"
            )
        lines[photo.file] = photo
    photos = sorted(lines.values(), key=lambda photo: (photo.client, photo.line))
    absent = sorted(set(CLIENTS) - {photo.client for photo in photos})
    if absent:
        year, viewpoint = absent[0]
        raise ValueError(
            f"{path}: {len(absent)} of the {len(CLIENTS)} clients have no images, the first is "
            f"{year}-{viewpoint}; use the complete {_LIST} of AdaGraph"
        )
    return photos


def _parse(path, number, line):
    match = _LINE.fullmatch(line.rstrip())
    parts = match[1].split("/")[-4:] if match else ()
    if len(parts) < 4 or not all(part.strip(".") for part in parts):
        raise ValueError(
            f"{path}: line {number} is not MAKE/MODEL/YEAR/FILE.jpg YEAR-VIEWPOINT TYPE; use "
            f"{_LIST} of AdaGraph"
        )
    year, viewpoint, label = (int(field) for field in match.groups()[1:])
    for field, value, values in (
        ("year", year, YEARS),
        ("viewpoint", viewpoint, VIEWPOINTS),
        ("type", label, range(1, TYPES + 1)),
    ):
        if value not in values:
            raise ValueError(
                f"{path}: line {number} has {field} {value}, which is not in {values[0]} to "
                f"{values[-1]}; correct it"
            )
    return Photo((year, viewpoint), "/".join(parts), label - 1, number)


def _find_list(folder, source, path):
    """The list to read, or None if images are to be simulated."""
    files.check_path(path, source, reading=("auto", "real"))
    if source == "simulated":
        return None
    file = Path(path) if path else folder / _LIST
    if not file.is_file():
        missing, remedy = f"no file {file}", f"put {_LIST} of AdaGraph (CVPR 2019) there"
    elif not (folder / "image").is_dir():
        missing = f"no folder {folder / 'image'}"
        remedy = "put the images of CompCars (CVPR 2015) there"
    else:
        return file
    return files.report_missing(
        "compcars",
        missing,
        remedy,
        folder=folder,
        required=source == "real" or path,
        stand_in="images are simulated",
    )


def _read_photographs(folder, file, size):
    """The images and types of each client, and the part of the official data set."""
    photos = read_list(file)
    for photo in photos:
        if not (folder / "image" / photo.file).is_file():
            raise FileNotFoundError(
                f"{file}: line {photo.line}: no file {folder / 'image' / photo.file}; put all "
                "images of CompCars there, or set --config.data.path to a list without the line"
            )
    pixels = photographs.squares(
        folder / "image",
        [photo.file for photo in photos],
        size=size,
        cache=folder / f"images-{size}.npy",
    )
    types = np.array([photo.type for photo in photos])
    counts = [sum(photo.client == client for photo in photos) for client in CLIENTS]
    ends = np.cumsum(counts)[:-1]
    extent = f"{len(types)} of {OFFICIAL} images" if len(types) < OFFICIAL else ""
    return np.split(pixels, ends), np.split(types, ends), extent


def _simulate(generator_seed, image_size):
    """The images and types of each client."""
    count = len(CLIENTS) * drawn_cars.FEWEST
    check_memory(f"data.image_size={image_size}", count * image_size**2 * 3)
    clients = [
        drawn_cars.draw(
            np.random.default_rng([generator_seed, year, viewpoint]),
            year=year - YEARS[0],
            view=viewpoint - VIEWPOINTS[0],
            image_size=image_size,
        )
        for year, viewpoint in CLIENTS
    ]
    return tuple(zip(*clients, strict=True))
