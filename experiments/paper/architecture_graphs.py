"""The graphs of a federation's client models, for a figure."""

import jax

from graphfl_jax.build import Experiment


def architecture_graphs(experiment: Experiment, model_name: str) -> tuple[list[dict], str]:
    """A line for each architecture, and a title.

    A line has the architecture's ``name``, its numbers of ``clients`` and ``parameters``, the
    ``types`` of its nodes and its ``edges``, [sender, receiver].

    Args:
      experiment: a federation with its client models.
      model_name: ``model.name`` of its configuration.

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
