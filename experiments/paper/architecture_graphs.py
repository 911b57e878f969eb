"""The graphs of a federation's client models: their lines, their drawing, and their sizes."""

import jax
from matplotlib import pyplot
from matplotlib.figure import Figure

from graphfl_jax.build import Experiment

COLUMNS = 4  # architectures beside each other
INPUT, LAYER, JOIN = "#ffffff", "#cfe3f3", "#fbe3b5"  # backgrounds of nodes


def architecture_graphs(experiment: Experiment, model_name: str) -> tuple[list[dict], str]:
    """A line for each architecture, and a title.

    A line has the architecture's ``name``, its numbers of ``clients`` and ``parameters``, the
    ``types`` of its nodes and its ``edges``, [sender, receiver].

    Raises:
      ValueError: a client model does not describe its layers.
    """
    federation = experiment.federation
    everyone = len(federation.clients)
    lines = []
    clients = experiment.build(experiment.hparams, 0).clients
    for client, group in zip(clients, experiment.joined or experiment.groups, strict=True):
        graph = client.model.architecture
        if graph is None:
            raise ValueError(
                f"model.name={model_name!r} does not describe its layers; choose a model that "
                f"does, such as --config.model.name=architectures"
            )
        shapes = jax.tree.leaves(jax.eval_shape(client.model.init, jax.random.key(0)))
        lines.append(
            {
                "name": graph.name,
                "clients": everyone if group.ids is None else len(group.ids),
                "parameters": sum(leaf.size for leaf in shapes),
                "types": [node.type for node in graph.nodes],
                "edges": [list(edge) for edge in graph.edges],
            }
        )
    return lines, f"client models of {federation.name}"


def graph_rows(lines: list[dict]) -> list[list[str]]:
    """The size of each architecture, as text."""
    rows = [
        [
            line["name"],
            str(line["clients"]),
            str(len(line["types"])),
            str(len(set(line["types"]))),
            f"{line['parameters']:,}",
        ]
        for line in lines
    ]
    return [["architecture", "clients", "nodes", "types", "parameters"], *rows]


def depths(count: int, edges: list[list[int]]) -> list[int]:
    """The length of the longest path to each of `count` nodes of an acyclic graph.

    Its edges are (sender, receiver), with sender < receiver.
    """
    longest = [0] * count
    for sender, receiver in sorted(edges):
        longest[receiver] = max(longest[receiver], longest[sender] + 1)
    return longest


def draw_architectures(lines: list[dict], title: str) -> Figure:
    """A graph in each panel, from the input at the top to the head, with the types as labels.

    Nodes of equal depth are beside each other. Edges over more than one layer are curved.
    """
    columns = min(COLUMNS, len(lines))
    rows = -(-len(lines) // columns)
    layers = [depths(len(line["types"]), line["edges"]) for line in lines]
    figure, panels = pyplot.subplots(
        rows,
        columns,
        figsize=(1.9 * columns, 0.6 + rows * (0.4 + 0.28 * (1 + max(map(max, layers))))),
        squeeze=False,
        layout="constrained",
    )
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, line, layer in zip(panels.flat, lines, layers, strict=False):
        places = _places(layer)
        for sender, receiver in line["edges"]:
            bend = 0.0 if layer[receiver] - layer[sender] == 1 else 0.6
            axes.annotate(
                "",
                places[receiver],
                places[sender],
                arrowprops={
                    "arrowstyle": "-|>",
                    "connectionstyle": f"arc3,rad={bend}",
                    "shrinkA": 5,
                    "shrinkB": 5,
                    "lw": 0.7,
                },
            )
        for type, place in zip(line["types"], places, strict=True):
            colour = {"input": INPUT, "add": JOIN, "concat": JOIN}.get(type, LAYER)
            box = {"boxstyle": "round,pad=0.2", "fc": colour, "ec": "black", "lw": 0.5}
            axes.text(*place, type, ha="center", va="center", fontsize=6, bbox=box)
        axes.set(xlim=(-1, 1), ylim=(-max(map(max, layers)) - 0.5, 0.5))
        unit = "client" if line["clients"] == 1 else "clients"
        axes.set_title(f"{line['name']}, {line['clients']} {unit}", fontsize="small")
    figure.suptitle(title, fontsize="medium")
    return figure


def _places(layer):
    """Coordinates of nodes: those of equal depth beside each other, in the middle."""
    beside = {depth: [n for n, at in enumerate(layer) if at == depth] for depth in layer}
    return [
        (beside[depth].index(number) - (len(beside[depth]) - 1) / 2, -depth)
        for number, depth in enumerate(layer)
    ]
