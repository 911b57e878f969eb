"""One colour and one line style for each method, in all figures."""

import itertools

from graphfl_jax.runs.views import COLOURS

# After the first seven methods, the dashes change.
DASHES = (
    *("-", "--", ":", "-."),
    *((0, (6, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 4))),
)
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

    A method of `METHODS` has the same in every figure. Other names have styles that no method
    has, in their order.

    Args:
      names: of the lines. A method's name may be followed by a remark in parentheses.
    """
    others = itertools.cycle(STYLES[len(METHODS) :])
    methods = [name.partition(" (")[0] for name in names]
    return [
        STYLES[METHODS.index(method)] if method in METHODS else next(others)
        for method in methods
    ]
