"""Client models of different architectures in one federation.

Litany, Maron, Acuna, Kautz, Chechik, Fidler. Federated Learning with Heterogeneous
Architectures using Graph HyperNetworks. 2022. https://arxiv.org/abs/2201.08459

    arch0 to arch3      residual networks of 18, 10, 12 and 12 layers; arch0 has shortcuts in
                        all stages, arch1 in none, arch2 and arch3 in the first and the last 3
    chest0 to chest3    the same with a first convolution of 7 x 7 and stride 2, for X-rays
    hybrid0 to hybrid3  arch0 with its sums as nodes; hybrid1 to hybrid3 replace the last sums
                        of two of the first three stages by concatenations
    plain4 to plain13   as many layers, all convolutions but the last, all of the same width

Departures: the paper names the layer types and the numbers of layers, and states neither the
sizes of stages nor the sums of the hybrids. Here
  * the stages of arch0 to arch3 have 4 4 4 4, 2 2 2 2, 4 2 2 2 and 2 2 2 4 convolutions of 64,
    128, 256 and 512 channels at width 64, which agrees with all that it states;
  * shortcuts have no parameters, since with projections there would be more layer types than
    the ten of the paper;
  * max pooling with stride 2 follows the first convolution of the X-ray networks, and the
    second and the fourth convolution of the plain ones;
  * a hybrid concatenates at the end of a stage, so that the next stage begins with as many
    channels as it has, and every layer type of the hybrids is in two of them or more.
The batch normalisation of a convolution belongs to its node.

A name may end in a divisor of the width: arch0/2 is arch0 with half of the channels. So a
federation can have one architecture at several widths.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Annotated

from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.cnn import check_images
from graphfl_jax.models.convolutions import Lowering
from graphfl_jax.models.graph_network import Layers, graph_model
from graphfl_jax.settings import Integer, Items

# Convolutions of the four stages, and the stages with shortcuts.
STAGES = {
    0: ((4, 4, 4, 4), (0, 1, 2, 3)),
    1: ((2, 2, 2, 2), ()),
    2: ((4, 2, 2, 2), (0, 1, 2)),
    3: ((2, 2, 2, 4), (1, 2, 3)),
}
CONCATENATED = {0: (), 1: (0, 1), 2: (1, 2), 3: (0, 2)}  # stages of the hybrids
PLAIN = (4, 7, 10, 13)  # layers
POOLED = (2, 4)  # convolutions of the plain networks


def _blocks(stages, width):
    """The blocks of two convolutions: stage, channels, stride, and whether it is the last."""
    for stage, convolutions in enumerate(stages):
        blocks = convolutions // 2
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            yield stage, width * 2**stage, stride, block == blocks - 1


def _residual(stages, skipped):
    def draw(layers, width, last):
        for stage, features, stride, _ in _blocks(stages, width):
            first = layers.convolution(features, last, stride=stride)
            shortcuts = (last,) if stage in skipped else ()
            last = layers.convolution(features, *shortcuts, first)
        return last

    return draw


def _hybrid(concatenated):
    def draw(layers, width, last):
        stages, _ = STAGES[0]
        for stage, features, stride, ends_stage in _blocks(stages, width):
            first = layers.convolution(features, last, stride=stride)
            second = layers.convolution(features, first)
            join = "concat" if stage in concatenated and ends_stage else "add"
            last = layers.join(join, last, second)
        return last

    return draw


def _plain(count):
    def draw(layers, width, last):
        for number in range(2, count):
            last = layers.convolution(width, last)
            if number in POOLED:
                layers.pool(last)
        return last

    return draw


def _factory(draw, *, size=3, stride=1):
    """A factory of `ARCHITECTURES` with a first convolution, then what `draw` adds to it."""

    def make(*, inputs, outputs, task, width, lowering):
        check_images("architectures", inputs, smallest=4)
        layers = Layers(inputs[-1])
        first = layers.convolution(width, 0, size=size, stride=stride)
        if stride > 1:
            layers.pool(first)
        last = draw(layers, width, first)
        return graph_model(
            layers.graph(last, outputs), inputs=inputs, task=task, lowering=lowering
        )

    return make


# (inputs, outputs, task, width, lowering) -> ClientModel, all by name, with an architecture.
ARCHITECTURES: dict[str, Callable[..., ClientModel]] = (
    {f"arch{i}": _factory(_residual(*STAGES[i])) for i in STAGES}
    | {f"chest{i}": _factory(_residual(*STAGES[i]), size=7, stride=2) for i in STAGES}
    | {f"hybrid{i}": _factory(_hybrid(stages)) for i, stages in CONCATENATED.items()}
    | {f"plain{count}": _factory(_plain(count)) for count in PLAIN}
)


class Names(tuple):
    """The names of `ARCHITECTURES`, each with or without a divisor such as /2."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and re.sub(r"/[1-9]\d*$", "", name) in ARCHITECTURES


def deal_out(names: Sequence[str], clients: int, *, field: str, who: str) -> list[str]:
    """The architecture of each client: names that differ are assigned in turn.

    If a name is repeated, there is one for each client. Errors name the field that holds the
    names, and the clients by `who`.

    Raises:
      ValueError: there are too many names, or too few for one each.
    """
    field, distinct = f"{field}={','.join(names)}", len(set(names))
    if distinct < len(names) != clients:
        raise ValueError(
            f"{field} gives {len(names)} architectures to {clients} {who}; name each once, or "
            f"one for each client"
        )
    if distinct > clients:
        raise ValueError(
            f"{field} has more architectures than the {clients} {who}; name fewer, or choose "
            f"data with more clients"
        )
    return (list(names) * -(-clients // len(names)))[:clients]


def architectures(
    *,
    inputs: tuple[int, ...],
    outputs: int,
    task: Task,
    architectures: Annotated[
        tuple[str, ...],
        Items(
            "Architectures, assigned to the clients in turn; or the architecture of each "
            "client, in the order of the clients, if names are repeated. NAME/2 has half of "
            "the width.",
            Names(ARCHITECTURES),
        ),
    ] = ("arch0", "arch1", "arch2", "arch3"),
    width: Annotated[
        int, Integer("Channels of the first convolution; all others scale with them.")
    ] = 64,
    lowering: Lowering = "auto",
) -> tuple[ClientModel, ...]:
    """The client models of the named architectures, for images [H, W, C] of at least 4 x 4.

    With ``width=64``, images with 3 channels and 10 outputs, arch0 to arch3 have 11,000,138,
    4,729,418, 4,803,402 and 9,450,058 parameters. Kernels start as in `images.Conv`, the head
    as PyTorch's ``Linear``. Bytes are scaled to -1 to 1. Statistics of the batch normalisation
    are those of `model_with_batch_norm`.

    Raises:
      ValueError: no architecture is named, one does not describe its layers, the width is not
        divisible, or the examples are not images.
    """
    if not architectures:
        raise ValueError(
            f"model.architectures is empty; choose from {', '.join(ARCHITECTURES)}"
        )
    models = {}
    for name in dict.fromkeys(architectures):
        base, _, divisor = name.partition("/")
        channels, remainder = divmod(width, int(divisor or 1))
        if remainder:
            raise ValueError(
                f"model.architectures={','.join(architectures)}: {name!r} divides "
                f"model.width={width}, which gives no whole number; set --config.model.width "
                f"to a multiple of {divisor}"
            )
        model = ARCHITECTURES[base](
            inputs=inputs, outputs=outputs, task=task, width=channels, lowering=lowering
        )
        if model.architecture is None:
            raise ValueError(
                f"model.architectures={','.join(architectures)}: {name!r} does not describe "
                f"its layers; give its ClientModel an architecture"
            )
        architecture = model.architecture._replace(name=name)
        models[name] = dataclasses.replace(model, architecture=architecture)
    return tuple(models[name] for name in architectures)
