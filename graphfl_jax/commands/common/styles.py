"""One colour and one line style for each method, in all figures and reports."""

import zlib

from graphfl_jax.runs.views import COLOURS

# After the first seven methods, the dashes change.
DASHES = (
    *("-", "--", ":", "-."),
    *((0, (6, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 4))),
)
NAMED = {"-": (), "--": (3.7, 1.6), ":": (1, 1.65), "-.": (6.4, 1.6, 1, 1.6)}  # in matplotlib
STYLES = [
    {"color": colour, "linestyle": dashes} for dashes in DASHES for colour in COLOURS
]  # the first ones are solid
# The position of a method here is its style. So new methods are added at the end.
METHODS = (
    *("panacea", "fedavg", "pfedhn", "local", "ditto", "pfedgat", "flha-ghn"),
    *("fedprox", "perfedavg", "pfedme", "fedamp", "sfl", "cfl", "panacea-mlp"),
    *("fedper", "fedrep", "fedrod", "knnper", "sfl-star", "heurfedamp", "panacea-gn"),
    *("scaffold", "fedavgm", "fedadam", "fedyogi", "fedah", "panacea-mean"),
    *("fedavg-finetune", "pfedgat-v2", "pfedgat-direct", "pfedgat-dot", "pfedhn-het"),
    *("fedproto", "feddistill", "fml", "fedgh", "lgfedavg", "heterofl", "distillation"),
    *("flha-ghn-no-gnn", "flha-ghn-table"),
)


def styles_of(names: list[str]) -> list[dict]:
    """The colour and the dashes of each line of a figure.

    A method of `METHODS` has the same in every figure. Another name determines a style that no
    method has; if another line of the figure has this style, it gets the next one.

    Args:
      names: of the lines. A method's name may be followed by a remark in parentheses.
    """
    methods = [name.partition(" (")[0] for name in names]
    place = {method: i for i, method in enumerate(METHODS)}
    count = len(STYLES) - len(METHODS)
    for own in sorted({*methods} - {*METHODS}):
        first = zlib.crc32(own.encode())
        free = [len(METHODS) + (first + i) % count for i in range(count)]
        place[own] = next((i for i in free if i not in place.values()), free[0])
    return [STYLES[place[method]] for method in methods]


def svg_dashes(style: dict) -> str:
    """The dashes of a style for a line of an SVG that is two pixels wide."""
    dashes = style["linestyle"]
    lengths = NAMED[dashes] if dashes in NAMED else dashes[1]
    return " ".join(f"{2 * length:g}" for length in lengths)
