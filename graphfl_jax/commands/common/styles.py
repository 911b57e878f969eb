"""How figures, tables and reports show methods and metrics: colours, dashes and units."""

import re
import zlib

from graphfl_jax.configs import methods
from graphfl_jax.runs.views import COLOURS

# metric -> (factor, name of the unit)
UNITS = {"accuracy": (100, "%"), "auc": (100, "%"), "mse": (1000, "1e-3")}
# After the first seven methods, the dashes change.
DASHES = (
    "-",
    "--",
    ":",
    "-.",
    (0, (6, 1, 1, 1, 1, 1)),
    (0, (8, 3)),
    (0, (1, 4)),
    (0, (3, 1, 1, 1)),
    (0, (5, 1)),
    (0, (2, 3)),
    (0, (10, 2, 3, 2)),
    (0, (12, 4)),
)
NAMED = {"-": (), "--": (3.7, 1.6), ":": (1, 1.65), "-.": (6.4, 1.6, 1, 1.6)}  # in matplotlib
STYLES = [
    {"color": colour, "linestyle": dashes} for dashes in DASHES for colour in COLOURS
]  # the first ones are solid


def styles_of(names: list[str]) -> list[dict]:
    """The colour and the dashes of each line of a figure.

    A method has the same in every figure, by its place in `configs.methods`. Another name
    determines a style that no method has; if another line of the figure has this style, it gets
    the next one.

    Args:
      names: of the lines. A method's name may be followed by values of fields after a +, as
        `configs.base.variant_of` adds them, and by a remark in parentheses.
    """
    lines = [re.split(r"\+| \(", name)[0] for name in names]
    place = {method: i for i, method in enumerate(methods())}
    first_free = len(place)
    count = len(STYLES) - first_free
    for name in sorted({*lines} - {*place}):
        first = zlib.crc32(name.encode())
        free = [first_free + (first + i) % count for i in range(count)]
        place[name] = next((i for i in free if i not in place.values()), free[0])
    return [STYLES[place[name]] for name in lines]


def svg_dashes(style: dict) -> str:
    """The dashes of a style for a line of an SVG that is two pixels wide."""
    dashes = style["linestyle"]
    lengths = NAMED[dashes] if dashes in NAMED else dashes[1]
    return " ".join(f"{2 * length:g}" for length in lengths)
