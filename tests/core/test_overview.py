"""What a federation says of itself, and its picture."""

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.configs import change, fl60, metr_la, million, tpt48
from tests.federations import two_clusters


def load(config, **fields):
    changes = {name.replace("__", "."): value for name, value in fields.items()}
    return graphfl_jax.federation(change(config, changes))


def test_a_federation_says_what_it_consists_of():
    federation = load(fl60.get_config("fedavg"), new_clients__fraction=0.1)
    text = repr(federation).splitlines()
    assert federation.describe() == "\n".join(text) and len(text) <= 10
    assert text[0] == "fl60, data: generated"
    assert text[1].startswith("60 clients, of which 6 join after training: domain ")
    assert text[2] == "classification: inputs [2], outputs 2"
    assert text[3] == "train: 4,800 examples, of a client 80"
    assert "labels: 0, 1" in text and "labels of a client in train: 2" in text
    graph = federation.everyone.graph
    neighbours = np.bincount(graph.receivers, minlength=60)
    assert text[-2] == (
        f"{len(graph.senders):,} relations; neighbours of a client: {neighbours.min()} to "
        f"{neighbours.max()}, mean {neighbours.mean():.6g}"
    )


def test_the_name_of_a_configuration_is_none():
    with pytest.raises(ValueError, match="^config='tpt48:fedavg' is no configuration; give a"):
        graphfl_jax.federation("tpt48:fedavg")


def test_targets_are_those_of_the_real_rows():
    """And not of the padding."""
    whole = two_clusters()
    train = whole.data.train._replace(y=whole.data.train.y.astype(np.float32)[..., None])
    data = whole.data._replace(train=train)
    counts = np.asarray(train.count)
    means = [train.y[i, :count].mean() for i, count in enumerate(counts)]
    text = whole._replace(data=data, task="regression").describe()
    low, high = (f"{value:,.6g}" for value in (min(means), max(means)))
    assert f"targets in train: means of clients {low} to {high}, mean" in text


@pytest.mark.parametrize(
    "config, fields",
    [
        (tpt48.get_config("fedavg"), {"data__source": "simulated"}),
        (fl60.get_config("fedavg"), {"new_clients__fraction": 0.1}),
        (
            metr_la.get_config("fedavg"),
            {"data__source": "simulated", "data__sensors": 6, "data__steps": 200},
        ),
        (million.get_config("fedavg"), {"data__clients": 3000}),
    ],
    ids=["tpt48", "fl60", "metr_la", "geometric"],
)
def test_every_kind_of_federation_is_drawn(config, fields):
    federation = load(config, **fields)
    figure = federation.plot()
    assert federation.name in figure.get_suptitle()
    left, right = figure.axes[:2]
    kind = "label" if federation.task == "classification" else "targets"
    assert right.get_ylabel().startswith(kind)
    if federation.positions is not None:
        assert left.get_xlabel() == federation.positions.axes[0]
    assert federation.describe().startswith(f"{federation.name}, data: ")
