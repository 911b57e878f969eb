"""Architectures: graphs, the networks that they define, and federations of several."""

import dataclasses
import functools
import importlib
import json
import math
import re
import shutil
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from experiments import bench
from experiments.paper.architecture_graphs import depths
from graphfl_jax.architecture import Architecture, Node, check_architecture, layer_of
from graphfl_jax.build import arrange, build_experiment
from graphfl_jax.configs import change, fl60, flha_cifar10, methods
from graphfl_jax.data import from_arrays
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models import MODELS
from graphfl_jax.models.architectures import ARCHITECTURES, architectures
from graphfl_jax.models.graph_network import Graph, GraphNetwork, Layers, graph_model
from graphfl_jax.rounds import divide_cohort
from graphfl_jax.runs.batch import Trial, run_trials
from graphfl_jax.runs.executables import description, open_kept
from graphfl_jax.runs.session import inputs_of, program_of
from graphfl_jax.runs.sweep import groups_of
from graphfl_jax.wire.attacks import with_attack_order
from tests.commands import ROOT, launched

KEY = jax.random.key(0)
TASK = {"outputs": 3, "task": CLASSIFICATION}
INPUTS = (9, 8, 3)  # an odd side too
# Nodes after which images are pooled.
POOLED = {"chest0": (1,), "chest3": (1,), "plain4": (2,), "plain7": (2, 4)}


@functools.cache
def model_of(name, width=2, inputs=INPUTS):
    (model,) = architectures(architectures=(name,), width=width, inputs=inputs, **TASK)
    return model


@functools.cache
def random_params(name):
    """Parameters of which none is 0 or 1."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model_of(name).init, KEY)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0.5, 0.3, leaf.shape), jnp.float32), shapes
    )


def images(count, seed=0):
    shape = (count, *INPUTS)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# --------------------------------------------------------------------------------- the networks


# Convolutions of the stages of 64 to 512 channels, and millions of parameters of convolutions
# and the head with 10 classes.
SIZES = {
    "arch0": ((4, 4, 4, 4), 11.0),
    "arch1": ((2, 2, 2, 2), 4.73),
    "arch2": ((4, 2, 2, 2), 4.80),
    "arch3": ((2, 2, 2, 4), 9.44),
}
TYPES = {
    "input",
    "c3_64_k3_s1",
    "c64_64_k3_s1",
    "c64_128_k3_s2",
    "c128_128_k3_s1",
    "c128_256_k3_s2",
    "c256_256_k3_s1",
    "c256_512_k3_s2",
    "c512_512_k3_s1",
    "linear512_10",
}


@pytest.mark.parametrize("name", SIZES)
def test_full_width_has_the_types_and_the_parameters_of_the_paper(name):
    (model,) = architectures(
        architectures=(name,), inputs=(32, 32, 3), outputs=10, task=CLASSIFICATION
    )
    stages, millions = SIZES[name]
    assert {node.type for node in model.architecture.nodes} == TYPES
    shapes = jax.eval_shape(model.init, KEY)
    sizes = {"kernel": 0, "scale": 0, "bias": 0}
    for path, leaf in jax.tree_util.tree_flatten_with_path(shapes)[0]:
        sizes[path[-1].key] += leaf.size
    expected, before = 9 * 3 * 64 + 512 * 10, 64
    for stage, count in enumerate(stages):
        channels = 64 * 2**stage
        expected += 9 * channels * (before + (count - 1) * channels)
        before = channels
    assert sizes["kernel"] == expected
    assert abs(sizes["kernel"] / 1e6 - millions) < 0.01
    layers = 64 + sum(count * 64 * 2**stage for stage, count in enumerate(stages))
    assert (sizes["scale"], sizes["bias"]) == (layers, layers + 10)


@pytest.mark.parametrize("count", [4, 7, 10, 13])
def test_plain_networks_have_as_many_layers_as_their_name_says(count):
    types = [node.type for node in model_of(f"plain{count}", 64).architecture.nodes]
    assert types == ["input", "c3_64_k3_s1", *["c64_64_k3_s1"] * (count - 2), "linear64_3"]


@pytest.mark.parametrize("name", ["chest0", "chest3"])
def test_networks_for_xrays_begin_with_a_large_convolution(name):
    model = model_of(name, 64, (64, 64, 1))
    assert model.architecture.nodes[1].type == "c1_64_k7_s2"
    others = model_of(name.replace("chest", "arch"), 64).architecture.nodes[2:]
    assert model.architecture.nodes[2:] == others


def test_every_type_of_the_hybrids_is_in_two_of_them():
    held = [{node.type for node in model_of(f"hybrid{i}").architecture.nodes} for i in range(4)]
    assert ["concat" in types for types in held] == [False, True, True, True]
    for kind in set.union(*held):
        assert sum(kind in types for types in held) >= 2, kind


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_graph_describes_all_parameters_of_its_network(name):
    model = model_of(name)
    shapes = jax.eval_shape(model.init, KEY)
    check_architecture(model.architecture, shapes)
    of_nodes = 0
    for node in model.architecture.nodes:
        if node.params:
            leaves = functools.reduce(lambda part, key: part[key], node.params, shapes)
            of_nodes += sum(leaf.size for leaf in jax.tree.leaves(leaves))
    assert of_nodes == sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_network_computes_the_shapes_that_its_graph_states(name):
    """The output of every convolution, traced, against its type and those of its senders."""
    model, inputs = model_of(name, 2), (20, 12, 3)
    architecture = model.architecture
    pooled = POOLED.get(name.replace("chest1", "chest0").replace("chest2", "chest0"), ())
    pooled = (2, 4) if name in ("plain10", "plain13") else pooled
    network = GraphNetwork(Graph(architecture, pooled), "im2col")

    def trace(params):
        x = jnp.zeros((2, *inputs), jnp.uint8)
        options = {"capture_intermediates": True, "mutable": ["intermediates"]}
        return network.apply({"params": params["body"]}, x, jnp.int32(2), **options)

    features, actual = jax.eval_shape(trace, jax.eval_shape(model.init, KEY))
    seen, channels = {0: inputs[:2]}, {0: inputs[2]}
    for number, node in list(enumerate(architecture.nodes))[1:-1]:
        senders = architecture.senders(number)
        layer, sides = layer_of(node.type), seen[senders[-1]]
        if layer is None:
            sizes = [channels[sender] for sender in senders]
            channels[number] = sum(sizes) if node.type == "concat" else max(sizes)
        else:
            assert channels[senders[-1]] == layer.inputs
            sides = tuple(-(-side // layer.stride) for side in sides)
            outputs = actual["intermediates"][node.params[1]]["__call__"]
            assert {out.shape for out in outputs} == {(layer.outputs, *sides, 2)}
            channels[number] = layer.outputs
        if number in pooled:
            sides = tuple(-(-side // 2) for side in sides)
        seen[number] = sides
    (last,) = architecture.senders(len(architecture.nodes) - 1)
    head = layer_of(architecture.nodes[-1].type)
    assert features.shape == (2, channels[last]) and head == (channels[last], 3)


@pytest.mark.parametrize("name", ["arch3", "hybrid1"])
def test_every_edge_counts(name):
    """Without a shortcut, outputs are others; without another edge, the graph is refused."""
    model, params = model_of(name), random_params(name)

    def outputs(architecture):
        options = {"inputs": INPUTS, "task": CLASSIFICATION, "lowering": "xla"}
        return jax.jit(graph_model(Graph(architecture), **options).apply)(params, images(2))

    whole, tried = outputs(model.architecture), 0
    for edge in model.architecture.edges:
        edges = tuple(other for other in model.architecture.edges if other != edge)
        less = model.architecture._replace(edges=edges)
        senders = model.architecture.senders(edge[1])
        if len(senders) > 1 and edge[0] != senders[-1] and name == "arch3":
            assert not np.allclose(outputs(less), whole, rtol=1e-3)
            tried += 1
        else:
            with pytest.raises(ValueError, match=f"^architecture '{name}': "):
                check_architecture(less, params)
    assert tried == (4 if name == "arch3" else 0)


# ----------------------------------------------------------------------- against NumPy, by hand


def conv(x, layer, stride=1):
    """A convolution and its batch normalisation over a whole batch [B, H, W, C]."""
    kernel = np.asarray(layer["kernel"], np.float64)
    size = len(kernel)
    padding = size // 2
    x = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    rows, columns = (range(0, side - size + 1, stride) for side in x.shape[1:3])
    out = np.array(
        [
            [np.tensordot(x[:, i : i + size, j : j + size], kernel, 3) for j in columns]
            for i in rows
        ]
    ).transpose(2, 0, 1, 3)
    mean, variance = out.mean(axis=(0, 1, 2)), out.var(axis=(0, 1, 2))
    return (out - mean) / np.sqrt(variance + 1e-5) * layer["scale"] + layer["bias"]


def relu(x):
    return np.maximum(x, 0)


def pool(x):
    """Maxima over 3 x 3 with stride 2."""
    x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
    rows, columns = (range(0, side - 2, 2) for side in x.shape[1:3])
    return np.array(
        [[x[:, i : i + 3, j : j + 3].max(axis=(1, 2)) for j in columns] for i in rows]
    ).transpose(2, 0, 1, 3)


def residual_network(params, x, stages, skipped, concatenated=()):
    """He et al.'s network with option A: the shortcut is subsampled and has zero channels."""
    layers = iter([params[f"layer{number}"] for number in range(1, len(params) + 1)])
    x = relu(conv(x, next(layers)))
    for stage, count in enumerate(stages):
        for block in range(count // 2):
            stride = 2 if stage and not block else 1
            out = conv(relu(conv(x, next(layers), stride)), next(layers))
            if stage in concatenated and block == count // 2 - 1:
                out = np.concatenate([x, out], axis=-1)
            elif stage in skipped:
                short = np.zeros_like(out)
                short[..., : x.shape[-1]] = x[:, ::stride, ::stride]
                out = out + short
            x = relu(out)
    assert next(layers, None) is None
    return x


def plain_network(params, x):
    for number in range(1, len(params) + 1):
        x = relu(conv(x, params[f"layer{number}"]))
        x = pool(x) if number in (2, 4) else x
    return x


def xray_network(params, x, stages, skipped):
    x = pool(relu(conv(x, params["layer1"], 2)))
    identity = {"kernel": np.eye(x.shape[-1])[None, None], "scale": x.std(axis=(0, 1, 2))}
    identity["scale"] = np.sqrt(identity["scale"] ** 2 + 1e-5)
    identity["bias"] = x.mean(axis=(0, 1, 2))
    return residual_network(params | {"layer1": identity}, x, stages, skipped)


NETWORKS = {
    "arch2": lambda *inputs: residual_network(*inputs, (4, 2, 2, 2), (0, 1, 2)),
    "arch3": lambda *inputs: residual_network(*inputs, (2, 2, 2, 4), (1, 2, 3)),
    "hybrid1": lambda *inputs: residual_network(*inputs, (4, 4, 4, 4), range(4), (0, 1)),
    "plain7": plain_network,
    "chest3": lambda *inputs: xray_network(*inputs, (2, 2, 2, 4), (1, 2, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_numpy_computes(name):
    params, x = random_params(name), images(4)
    arrays = jax.tree.map(np.asarray, params)
    features = NETWORKS[name](arrays["body"], x / 127.5 - 1).mean(axis=(1, 2))
    expected = features @ arrays["head"]["kernel"] + arrays["head"]["bias"]
    actual = jax.jit(model_of(name).apply)(params, x)
    np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)


def test_sums_as_nodes_are_shortcuts_bit_for_bit():
    params, x = random_params("arch0"), images(3)
    shapes = [jax.eval_shape(model_of(name).init, KEY) for name in ("arch0", "hybrid0")]
    assert shapes[0] == shapes[1]
    outputs = [jax.jit(model_of(name).apply)(params, x) for name in ("arch0", "hybrid0")]
    np.testing.assert_array_equal(*outputs)


def test_rows_of_padding_change_neither_gradients_nor_statistics():
    model, params = model_of("plain7"), random_params("plain7")
    y = jnp.arange(6) % 3
    both = [
        Examples(jnp.asarray(np.concatenate([images(4), fill])), y, jnp.int32(4))
        for fill in (images(2, seed=1), np.zeros((2, *INPUTS), np.uint8))
    ]
    gradient, recalibrate = jax.jit(jax.grad(model.objective)), jax.jit(model.recalibrate)
    for left, right in (
        [gradient(params, batch, KEY) for batch in both],
        [recalibrate(params, batch) for batch in both],
    ):
        assert jax.tree.structure(left) == jax.tree.structure(right)
        jax.tree.map(np.testing.assert_array_equal, left, right)


def test_predictions_after_recalibration_do_not_depend_on_the_batch():
    model, apply = model_of("plain7"), jax.jit(model_of("plain7").apply)
    examples = Examples(jnp.asarray(images(6)), jnp.arange(6) % 3, jnp.int32(6))
    params = jax.jit(model.recalibrate)(random_params("plain7"), examples)
    whole = apply(params, images(6))
    alone = [apply(params, images(6)[i : i + 1])[0] for i in range(2)]
    np.testing.assert_allclose(alone, whole[:2], rtol=1e-5, atol=1e-6)
    assert not np.allclose(
        apply(random_params("plain7"), images(6)[:1])[0], whole[0], atol=1e-2
    )


@pytest.mark.parametrize("name", ["lenet", "cnn", "conv3"])
@pytest.mark.parametrize("inputs", [(28, 28, 1), (17, 20, 3)])
def test_other_networks_for_images_describe_themselves(name, inputs):
    model = MODELS[name](inputs=inputs, **TASK)
    check_architecture(model.architecture, jax.eval_shape(model.init, KEY))
    assert model.architecture.name == name


# --------------------------------------------------------------------------- graphs of the user


NODES = (
    Node("input"),
    Node("c3_4_k3_s1", ("body", "a")),
    Node("c4_4_k3_s1", ("body", "b")),
    Node("c4_4_k3_s1", ("body", "c")),
    Node("linear4_2", ("head",)),
)
EDGES = ((0, 1), (1, 2), (2, 3), (1, 3), (3, 4))
SHAPES = {
    "body": {
        name: {"kernel": np.zeros((3, 3, channels, 4)), "bias": np.zeros(4)}
        for name, channels in (("a", 3), ("b", 4), ("c", 4))
    },
    "head": {"kernel": np.zeros((4, 2)), "bias": np.zeros(2)},
}
WRONG = {
    "a cycle": (
        {"edges": (*EDGES, (3, 2))},
        "the edge 3 -> 2 leads back, as in a cycle; order the nodes",
    ),
    "a loop": ({"edges": (*EDGES, (2, 2))}, "the edge 2 -> 2 leads back, as in a cycle"),
    "an edge to nothing": ({"edges": (*EDGES, (3, 5))}, "there is no node for the edge 3 -> 5"),
    "nothing from": (
        {"edges": ((0, 1), (1, 2), (1, 3), (3, 4))},
        r"no edge leads from node 2 \(c4_4_k3_s1\); connect it, or leave it out",
    ),
    "nothing to": (
        {"edges": ((0, 1), (1, 3), (2, 3), (3, 4))},
        r"no edge leads to node 2 \(c4_4_k3_s1\)",
    ),
    "channels": (
        {"nodes": (*NODES[:2], Node("c5_4_k3_s1", ("body", "b")), *NODES[3:])},
        r"node 2 \(c5_4_k3_s1\) takes 5 channels, and node 1 \(c3_4_k3_s1\) gives 4",
    ),
    "features": (
        {"nodes": (*NODES[:4], Node("linear5_2", ("head",)))},
        r"node 4 \(linear5_2\) takes 5 channels, and node 3 \(c4_4_k3_s1\) gives 4",
    ),
    "a shortcut": (
        {
            "nodes": (
                *NODES[:3],
                Node("c4_3_k3_s1", ("body", "c")),
                Node("linear3_2", ("head",)),
            )
        },
        r"the shortcut from node 1 \(c3_4_k3_s1\) has 4 channels, and node 3 \(c4_3_k3_s1\) "
        r"gives 3",
    ),
    "a join of one": (
        {
            "nodes": (*NODES[:3], Node("add"), NODES[4]),
            "edges": ((0, 1), (1, 2), (2, 3), (3, 4)),
        },
        r"node 3 \(add\) does not join two layers",
    ),
    "a type": (
        {"nodes": (*NODES[:3], Node("conv4_4", ("body", "c")), NODES[4])},
        "node 3 has the unknown type 'conv4_4'; types are input, c<in>_<out>_k<k>_s<s>",
    ),
    "no channels": (
        {"nodes": (*NODES[:3], Node("c4_0_k3_s1", ("body", "c")), NODES[4])},
        "node 3 has the unknown type 'c4_0_k3_s1'; .* with sizes of at least 1",
    ),
    "two inputs": (
        {"nodes": (*NODES[:3], Node("input"), NODES[4])},
        "node 3 has the type 'input'; the first node, and no other, has the type input",
    ),
    "no head": (
        {"nodes": (*NODES[:4], Node("linear4_2", ("body", "d")))},
        r"node 4 \(linear4_2\) is not the head",
    ),
    "a path": (
        {"nodes": (*NODES[:3], Node("c4_4_k3_s1", ("body", "d")), NODES[4])},
        r"node 3 \(c4_4_k3_s1\) has the kernels none at \['body', 'd'\]",
    ),
    "a kernel": (
        {"nodes": (*NODES[:3], Node("c4_4_k1_s1", ("body", "c")), NODES[4])},
        r"node 3 \(c4_4_k1_s1\) has the kernels \[3, 3, 4, 4\] at",
    ),
    "a path twice": (
        {"nodes": (*NODES[:3], Node("c4_4_k3_s1", ("body", "b")), NODES[4])},
        r"node 3 \(c4_4_k3_s1\) and node 2 \(c4_4_k3_s1\) both have the parameter",
    ),
    "a parameter": (
        {"nodes": (*NODES[:3], NODES[4]), "edges": ((0, 1), (1, 2), (2, 3))},
        r"no node has the parameter \['body', 'c', 'kernel'\]",
    ),
}


def test_a_whole_graph_is_accepted():
    check_architecture(Architecture("own", NODES, EDGES), SHAPES)


@pytest.mark.parametrize("case", WRONG)
def test_a_graph_that_does_not_fit_is_refused_in_one_line(case):
    changes, message = WRONG[case]
    with pytest.raises(ValueError, match=f"^architecture 'own': {message}") as refused:
        check_architecture(Architecture("own", NODES, EDGES)._replace(**changes), SHAPES)
    assert "\n" not in str(refused.value) and "; " in str(refused.value)


NOT_COMPUTED = {
    **{case: WRONG[case] for case in ("a cycle", "nothing to", "channels", "a type")},
    "images": (
        {"nodes": (*NODES[:2], Node("c4_4_k3_s2", ("body", "b")), *NODES[3:])}
        | {"edges": ((0, 1), (1, 2), (1, 3), (2, 3), (3, 4))},
        None,
    ),
    "smaller images": (
        {
            "nodes": (*NODES[:2], Node("c4_4_k3_s2", ("body", "b")), Node("add"), NODES[4]),
            "edges": ((0, 1), (1, 2), (1, 3), (2, 3), (3, 4)),
        },
        None,
    ),
    "larger images": (
        {
            "nodes": (
                NODES[0],
                Node("c3_4_k3_s2", ("body", "a")),
                Node("c3_4_k3_s1", ("body", "b")),
                Node("add"),
                NODES[4],
            ),
            "edges": ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4)),
        },
        r"node 1 \(c3_4_k3_s2\) gives images of \[5, 4\] pixels, and node 3 \(add\) of \[9",
    ),
    "a dense layer": (
        {
            "nodes": (*NODES[:3], Node("linear4_4", ("body", "c")), NODES[4]),
            "edges": ((0, 1), (1, 2), (2, 3), (3, 4)),
        },
        r"node 3 \(linear4_4\) is not the head",
    ),
    "a head of two": (
        {"nodes": (*NODES[:4], Node("linear4_4", ("head",))), "edges": (*EDGES, (2, 4))},
        r"node 4 \(linear4_4\) has several inputs; join them",
    ),
}


@pytest.mark.parametrize("case", NOT_COMPUTED)
def test_a_graph_that_is_not_computed_is_refused_in_one_line(case):
    """A model of a graph is checked before its parameters are made. None: it is computed."""
    changes, message = NOT_COMPUTED[case]
    graph = Graph(Architecture("own", NODES, EDGES)._replace(**changes))

    def parameters():
        options = {"inputs": INPUTS, "task": CLASSIFICATION, "lowering": "xla"}
        return jax.eval_shape(graph_model(graph, **options).init, KEY)

    if message is None:
        assert parameters()["head"]["kernel"].shape == (4, 2)
        return
    with pytest.raises(ValueError, match=f"^architecture 'own': {message}"):
        parameters()


def test_layers_are_joined_in_ascending_order():
    layers = Layers(3)
    first = layers.convolution(4, 0)
    second = layers.convolution(4, first)
    with pytest.raises(ValueError, match=r"^add gets the layers \(2, 1\); give each once"):
        layers.join("add", second, first)


# ---------------------------------------------------------------------------------- federations


@functools.cache
def federation(clients=5, side=4, channels=3):
    """Clients with 6 training images and more; the label is the brightest channel."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 12 * clients)
    x = rng.integers(0, 100, (len(y), side, side, channels))
    x[np.arange(len(y)), :, :, y % channels] += 100
    client = np.arange(len(y)) % clients
    return from_arrays(x.astype(np.uint8), y, client, test_fraction=0.3)


def config_of(*names, **changes):
    """Local training of small networks; `changes` by dotted name, with __ for the dots."""
    small = {
        "data.cap": 0,
        "model.architectures": names,
        "model.width": 1,
        "model.lowering": "xla",  # is compiled faster
        "cohort_size": 4,
        "rounds": 4,
        "local_steps": 2,
        "batch_size": 4,
        "eval_every": 1,
        "checkpoint_every": 2,
    }
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return change(flha_cifar10.get_config("local"), small | changes)


def experiment_of(*names, clients=5, **changes):
    return build_experiment(config_of(*names, **changes), federation(clients))


def test_architectures_are_dealt_out_in_turn():
    groups = experiment_of("plain4", "arch1", cohort_size=5).groups
    assert [group.name for group in groups] == ["plain4", "arch1"]
    assert [group.ids.tolist() for group in groups] == [[0, 2, 4], [1, 3]]
    assert [group.cohort_size for group in groups] == [3, 2]
    experiment = experiment_of("plain4", "arch1", cohort_size=5)
    clients = experiment.build(experiment.hparams, 0).clients
    names = [client.model.architecture.name for client in clients]
    assert names == ["plain4", "arch1"]


def test_repeated_names_are_the_architectures_of_the_clients():
    names = ("plain4", "plain7", "plain7", "plain4", "plain7")
    groups = experiment_of(*names).groups
    clients = {group.name: group.ids.tolist() for group in groups}
    assert clients == {"plain4": [0, 3], "plain7": [1, 2, 4]}
    # 4 places: one for each, then 3 / 3 clients before 2 / 3, then 2 / 3 before 3 / 5.
    assert [group.cohort_size for group in groups] == [2, 2]


def test_a_divisor_in_a_name_makes_a_narrower_network():
    (half,) = architectures(architectures=("arch2/3",), width=6, inputs=INPUTS, **TASK)
    nodes, edges = model_of("arch2").architecture[1:]
    assert half.architecture == Architecture("arch2/3", nodes, edges)
    shapes = [jax.eval_shape(model.init, KEY) for model in (half, model_of("arch2"))]
    assert shapes[0] == shapes[1]


def test_heterofl_has_one_architecture_at_several_widths():
    """A client of a width gets the slice of the widest model."""
    names = ("arch1/2", "arch1", "arch1/4")
    experiment = experiment_of(*names, model__width=4, algorithm__name="heterofl")
    assert [group.ids.tolist() for group in experiment.groups] == [[0, 3], [1, 4], [2]]
    server = experiment.build(experiment.hparams, 0).server
    state = jax.eval_shape(lambda key: server.init(key, None), KEY)
    messages = [
        jax.eval_shape(lambda state, g=g: server.download(state, g, 0), state) for g in range(3)
    ]
    widths = [message["body"]["layer1"]["kernel"].shape[-1] for message in messages]
    assert widths == [2, 4, 1] and messages[1] == state


@pytest.mark.parametrize("names", [("plain4",), ("plain4",) * 5])
@pytest.mark.parametrize("method", ["fedavg", "local", "ditto"])
def test_with_one_architecture_every_method_can_be_chosen(names, method):
    experiment = experiment_of(*names, algorithm__name=method)
    (group,) = experiment.groups
    assert group.ids is None and group.cohort_size == 4


@pytest.mark.parametrize(
    "size, counts, expected",
    [
        (4, [1, 1, 1, 1], [1, 1, 1, 1]),
        (7, [4, 3], [4, 3]),
        (6, [8, 4], [4, 2]),
        (5, [100, 1, 1], [3, 1, 1]),
        (6, [100, 1, 1], [4, 1, 1]),
        (3, [2, 2], [2, 1]),
        (2, [1, 99], [1, 1]),
    ],
)
def test_a_cohort_is_divided_in_proportion_with_one_of_each_at_least(size, counts, expected):
    assert divide_cohort(size, counts) == expected


NEW = {"new_clients__fraction": 0.4, "cohort_size": 2}  # two of five clients
REFUSED = {
    "numbers": (
        {"names": ("plain4", "plain4", "plain7")},
        "model.architectures=plain4,plain4,plain7 gives 3 architectures to 5 clients; name",
    ),
    "more than clients": (
        {"names": tuple(ARCHITECTURES)[:6]},
        "has more architectures than the 5 clients; name",
    ),
    "cohort": (
        {"names": ("plain4", "plain7"), "cohort_size": 1},
        "cohort_size=1 is less than the 2 architectures",
    ),
    "method": (
        {"names": ("plain4", "plain7"), "algorithm__name": "fedavg"},
        "algorithm.name='fedavg' needs clients of one architecture, and model.architectures",
    ),
    "unknown": (
        {"names": ("plain4", "vgg")},
        "model.architectures=plain4,vgg: 'vgg' is unknown; choose from arch0, ",
    ),
    "no divisor": (
        {"names": ("plain4", "plain4/0")},
        "model.architectures=plain4,plain4/0: 'plain4/0' is unknown; choose from arch0, ",
    ),
    "no whole width": (
        {"names": ("plain4", "plain4/3"), "model__width": 8},
        "model.architectures=plain4,plain4/3: 'plain4/3' divides model.width=8",
    ),
    "none": ({"names": ()}, "model.architectures is empty; choose from arch0, "),
    "width": (
        {"names": ("plain4", "plain7"), "model__width": 0},
        "model.width=0 must be at least 1; set",
    ),
    "defence": (
        {"names": ("plain4", "plain7"), "defence__name": "clip"},
        "defence.name='clip' has no effect: the clients of algorithm.name='local' upload",
    ),
    "new unknown": (
        {"names": ("plain4",), **NEW, "new_clients__architectures": ("vgg",)},
        "new_clients.architectures=vgg: 'vgg' is unknown; choose from arch0, ",
    ),
    "new numbers": (
        {"names": ("plain4",), **NEW, "new_clients__architectures": ("plain7",) * 3},
        "new_clients.architectures=plain7,plain7,plain7 gives 3 architectures to 2 new clients",
    ),
    "new without any": (
        {"names": ("plain4",), "new_clients__architectures": ("plain7",)},
        "new_clients.architectures=('plain7',) is not read by this configuration; it belongs",
    ),
    "new method": (
        {
            "names": ("plain4", "plain10"),
            "algorithm__name": "pfedhn_het",
            **NEW,
            "new_clients__architectures": ("plain7", "plain4"),
        },
        "algorithm.name='pfedhn_het' has no model for an architecture that only new clients "
        "have, and new_clients.architectures gives them plain7; set",
    ),
    "new method of one architecture": (
        {"names": ("plain4",) * 4 + ("plain7",), "algorithm__name": "fedavg", **NEW},
        "algorithm.name='fedavg' has no model for an architecture that only new clients have, "
        "and model.architectures gives them plain7; set",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line_before_anything_is_written(case, tmp_path):
    changes, message = REFUSED[case]
    changes = dict(changes)
    with pytest.raises(ValueError) as refused:
        graphfl_jax.run(
            config_of(*changes.pop("names"), **changes), federation(), out=tmp_path / "out"
        )
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "added, changes, message",
    [
        (
            0,
            {},
            "algorithm.name='fedavg' needs clients of one architecture, and "
            "model.name='two_networks' gives them several, plain4,plain7; choose one",
        ),
        (
            1,
            {"algorithm.name": "local"},
            "model.name='two_networks' maps an example of shape "
            "(4, 4, 3) to outputs of shape (4,), and custom needs (3,); make the model with",
        ),
    ],
)
def test_own_models_of_several_architectures_are_checked(monkeypatch, added, changes, message):
    def two_networks(*, inputs, outputs, task):
        sizes = {"inputs": inputs, "outputs": outputs + added, "task": task}
        return architectures(**sizes, architectures=SEVERAL, width=1)

    monkeypatch.setitem(MODELS, "two_networks", two_networks)
    settings = {"model.name": "two_networks", "algorithm.name": "fedavg"} | changes
    config = change(fl60.get_config("local"), settings | {"cohort_size": 3})
    with pytest.raises(ValueError) as refused:
        build_experiment(config, federation())
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_examples_that_are_not_images_are_refused():
    rows = from_arrays(np.zeros((20, 3)), np.arange(20) % 2, np.arange(20) % 5)
    with pytest.raises(ValueError, match="model.name='architectures' takes images of shape"):
        build_experiment(config_of("plain4", "plain7"), rows)


SEVERAL = ("plain4", "plain7")


def test_rounds_are_compared_with_fedavg_of_each_architecture(monkeypatch):
    """Five clients, of which four are in a round: two have plain4, and one each the others."""
    monkeypatch.setattr(bench, "federation_of", lambda config: federation())
    config = change(config_of("plain4", "plain7", "arch1"), methods()["flha-ghn"])
    whole, *alone = bench.each_architecture(config).items()
    assert whole == ("flha-ghn", config)
    expected = {"fedavg, plain4": 2, "fedavg, plain7": 1, "fedavg, arch1": 1}
    assert {name: single.cohort_size for name, single in alone} == expected
    for name, single in alone:
        assert (single.algorithm.name, single.client_optimizer) == ("fedavg", "sgd")
        assert name == f"fedavg, {','.join(single.model.architectures)}"
        assert (
            single.local_steps == config.local_steps
            and single.model.width == config.model.width
        )


def generated_config():
    """FLHA-GHN with two architectures; all that it keeps belongs to the server."""
    settings = methods()["flha-ghn"] | {"algorithm.ghn_depth": 1, "algorithm.ghn_width": 4}
    return change(config_of(*SEVERAL), settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of `generated_config` and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return graphfl_jax.run(generated_config(), federation(), out=folder / "out"), folder / "out"


@pytest.mark.release
def test_results_have_the_scores_of_each_architecture(whole):
    result, folder = whole
    results = json.loads((folder / "results.json").read_text())
    parts = results["architectures"]
    bytes_of_server = sum(leaf.nbytes for leaf in jax.tree.leaves(result.state.server))
    assert list(parts) == ["plain4", "plain7"] and bytes_of_server > 0
    for ids, part in zip(([0, 2, 4], [1, 3]), parts.values(), strict=True):
        assert part["ids"] == ids
        assert part["clients"] == [federation().clients[i] for i in ids]
        assert part["up_bytes"] == part["down_bytes"] == bytes_of_server
        for point in "GLP":
            scores = np.array(results["scores"]["final"][point]["per_client"])[ids]
            assert math.isclose(part["scores"]["test"][point], scores.mean())


@pytest.mark.release
def test_a_resumed_run_is_the_whole_run_bit_for_bit(whole, tmp_path):
    result, folder = whole
    shutil.copytree(folder, tmp_path / "out")
    (tmp_path / "out/results.json").unlink()
    shutil.rmtree(tmp_path / "out/checkpoints/00000004")
    (tmp_path / "out/checkpoints/00000004.json").unlink()
    resumed = graphfl_jax.run(
        generated_config(), federation(), out=tmp_path / "out", resume=True
    )
    for ours, theirs in ((resumed.state, result.state), (resumed.rows, result.rows)):
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    metrics = [(path / "metrics.jsonl").read_bytes() for path in (folder, tmp_path / "out")]
    assert metrics[0] == metrics[1]


@pytest.mark.release
def test_a_batch_of_seeds_is_the_runs(whole):
    """One group of trials, played as one program."""
    config = generated_config()
    federations = {seed: federation() for seed in (0, 1)}
    trials = [Trial({}, seed) for seed in (0, 1)]
    outcomes = dict(run_trials(config, federations, trials, at_once=2))
    expected = whole[0].results["architectures"]
    for part, alone in zip(
        outcomes[0].results["architectures"].values(), expected.values(), strict=True
    ):
        for point, score in alone["scores"]["test"].items():
            assert abs(part["scores"]["test"][point] - score) < 1e-6
    assert outcomes[1].results["seed"] == 1
    assert outcomes[1].rows[0]["train"]["loss"] != outcomes[0].rows[0]["train"]["loss"]


@pytest.mark.release
def test_new_clients_of_an_unseen_architecture_are_in_the_results():
    """FLHA-GHN generates it; the programs of its key are those of these architectures."""
    changes = {"algorithm__name": "flha_ghn", "algorithm__flha_generator": "table", **NEW}
    changes |= {"rounds": 1, "local_steps": 1, "new_clients__rounds": 1}
    config = config_of("plain4", **changes, new_clients__architectures=("plain7",))
    result = graphfl_jax.run(config, federation()).results
    assert result["architectures"] is None
    (part,) = result["new_clients"]["architectures"].values()
    assert (part["ids"], part["trained"]) == ([3, 4], False)
    assert part["clients"] == result["new_clients"]["clients"]
    first, second = part["curve"]
    assert (first["rounds"], second["rounds"]) == (0, 1)
    others = change(config, {"new_clients.architectures": ("plain4", "plain10")})
    keys = []
    for variant in (config, others):
        experiment = build_experiment(variant, arrange(variant, federation()))
        keys.append(description(experiment, variant, inputs_of(experiment, 0)))
    assert keys[0] != keys[1]


@pytest.mark.release
def test_a_batch_of_seeds_has_the_new_clients_of_the_runs():
    config = config_of("plain4", **NEW, rounds=1, new_clients__rounds=1)
    config = change(config, {"new_clients.architectures": ("plain7", "plain4")})
    federations = {
        seed: arrange(change(config, {"seed": seed}), federation()) for seed in (0, 1)
    }
    outcomes = dict(run_trials(config, federations, [Trial({}, 0), Trial({}, 1)], at_once=2))
    for seed, outcome in outcomes.items():
        alone = graphfl_jax.run(change(config, {"seed": seed}), federation()).results
        ours, theirs = outcome.results["new_clients"], alone["new_clients"]
        assert ours["clients"] == theirs["clients"]
        for name, part in theirs["architectures"].items():
            for row, expected in zip(
                ours["architectures"][name]["curve"], part["curve"], strict=True
            ):
                assert row == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_fine_tuning_precision_and_attacks_combine_with_several_architectures():
    """Traced only: a round keeps the shape of the state, and all clients have scores."""
    config = config_of(
        *SEVERAL, tuning__part="head", precision="bfloat16", attack__name="label_flip"
    )
    attacked = with_attack_order(federation(), clients=(), seed=0)
    experiment = build_experiment(config, attacked)
    program = program_of(experiment, config)
    inputs = (KEY, dict.fromkeys(experiment.hparams, jnp.float32(0.1)), attacked.data)
    state = jax.eval_shape(program.start, *inputs)
    after, _ = jax.eval_shape(program.advance, state, *inputs, jnp.int32(1))
    assert after == state
    assert jax.eval_shape(program.evaluate, after, *inputs).scores["test"]["P"].shape == (5,)


def test_sweeps_group_runs_by_their_architectures():
    points = [{"model.architectures": names} for names in (SEVERAL, ("plain4",))]

    def configure(point):
        return change(config_of(data__source="simulated", data__cap=20), point), {}

    assert len(groups_of(points, [0], configure)) == 2


# ---------------------------------------------------------------------------- as a user does it


@pytest.fixture
def arrays(tmp_path):
    """A file of the user's own images."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=x, y=np.arange(60) % 3, client=np.arange(60) // 20)
    return tmp_path


CUSTOM = [
    f"--config={ROOT}/configs/custom.py:local",
    "--config.data.path=images.npz",
    "--config.model.name=architectures",
    "--config.cohort_size=3",
    "--config.rounds=1",
    "--config.local_steps=1",
    "--config.batch_size=2",
    "--config.model.width=1",
]


@pytest.mark.release
def test_own_images_train_different_architectures(arrays):
    words = ["--config.model.architectures=plain4,plain7", "--out=out"]
    ended = launched("run", *CUSTOM, *words, cwd=arrays)
    assert ended.status == 0, ended.stderr
    assert "by architecture" in ended.stdout
    for name, clients in (("plain4", 2), ("plain7", 1)):
        assert re.search(rf"│ {name} +│ +{clients} │ +[01][.\d]* │", ended.stdout)
    results = json.loads((arrays / "out/results.json").read_text())
    assert results["architectures"]["plain4"]["clients"] == ["0", "2"]


@pytest.fixture
def of_the_page():
    """The networks of docs/developer/add-a-model.md are architectures."""
    page = (ROOT / "docs/developer/add-a-model.md").read_text()
    known = dict(ARCHITECTURES)
    for example in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(example, "add-a-model.md", "exec"), {"__name__": "own"})
    yield
    ARCHITECTURES.clear()
    ARCHITECTURES.update(known)


def test_the_networks_of_the_page_join_a_federation(of_the_page, tmp_path):
    experiment = experiment_of("plain4", "short", model__width=2)
    assert [group.name for group in experiment.groups] == ["plain4", "short"]
    model = experiment.build(experiment.hparams, 0).clients[1].model
    shapes = jax.eval_shape(model.init, KEY)
    # The layers of one type are the same as those of the other architecture.
    assert "c2_2_k3_s1" in [node.type for node in model.architecture.nodes]
    layers = [shapes["body"]["second"], jax.eval_shape(model_of("plain4").init, KEY)]
    assert layers[0] == layers[1]["body"]["layer2"]
    # Nothing is kept of a program whose source is not in the key.
    inputs = inputs_of(experiment, 0)
    assert open_kept(tmp_path, experiment, config_of("plain4", "short"), inputs).folder is None


def test_the_networks_of_the_page_are_the_same(of_the_page):
    drawn, params = model_of("drawn"), random_params("drawn")
    short, names = model_of("short"), ("first", "second", "third")
    types = [[node.type for node in model.architecture.nodes] for model in (drawn, short)]
    assert types[0] == types[1] and drawn.architecture.edges == short.architecture.edges
    body = dict(zip(names, params["body"].values(), strict=True))
    actual = [
        model.apply(weights, images(4))
        for model, weights in ((drawn, params), (short, params | {"body": body}))
    ]
    np.testing.assert_allclose(actual[0], actual[1], rtol=1e-5)


def test_the_graph_of_a_network_is_checked_when_a_federation_is_built(of_the_page):
    short = ARCHITECTURES["short"]

    def broken(**arguments):
        model = short(**arguments)
        graph = model.architecture
        return dataclasses.replace(model, architecture=graph._replace(edges=graph.edges[:-1]))

    ARCHITECTURES["short"] = broken
    with pytest.raises(ValueError, match="^architecture 'short': no edge leads from node 3"):
        experiment_of("plain4", "short", model__width=2)


def test_flax_modules_with_a_graph_get_generated_weights(monkeypatch):
    """A module of two dense layers, which `client_model` makes a client model."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.relu(nn.Dense(4, name="first")(x))

    def net(*, inputs, outputs, task):
        nodes = (Node("input"), Node("linear2_4", ("body", "first")))
        nodes += (Node(f"linear4_{outputs}", ("head",)),)
        graph = Architecture("net", nodes, ((0, 1), (1, 2)))
        arguments = {"inputs": inputs, "task": task, "architecture": graph}
        return graphfl_jax.client_model(body=Net(), head=nn.Dense(outputs), **arguments)

    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(60, 2)).astype(np.float32), np.arange(60) % 3
    federation = from_arrays(x, (x[:, 0] > 0).astype(int), client)
    settings = {"model.name": "net", "rounds": 2, "local_steps": 2, "cohort_size": 3}
    monkeypatch.setitem(MODELS, "net", net)
    config = graphfl_jax.configs.configure("flha-ghn", "custom", settings=settings)
    experiment = build_experiment(config, federation)
    algorithm = experiment.build(experiment.hparams, 0)
    weights = jax.eval_shape(lambda key: algorithm.server.init(key, None), KEY)
    assert set(weights["heads"]) == {"linear2_4", "linear4_2"}


def test_the_configuration_of_the_file_is_that_of_the_package():
    path = Path(ROOT / "configs/flha_cifar10.py")
    spec = importlib.util.spec_from_file_location("flha", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.get_config is flha_cifar10.get_config
    config = module.get_config()
    assert config.model.architectures == ("arch0", "arch1", "arch2", "arch3")
    assert (config.data.clients, config.cohort_size, config.model.width) == (4, 4, 8)


# --------------------------------------------------------------------------------------- figure


def test_depths_are_the_longest_paths():
    assert depths(5, [[0, 1], [1, 2], [1, 3], [2, 3], [0, 4], [3, 4]]) == [0, 1, 2, 3, 4]
    assert depths(4, [[0, 1], [0, 2], [1, 3], [2, 3]]) == [0, 1, 1, 2]


@pytest.mark.slow
def test_the_figure_shows_the_graphs_of_the_clients(tmp_path):
    words = [
        "--figure=architectures",
        "--out=here",
        "--config.data.source=simulated",
        "--config.data.cap=20",
        "--config.model.architectures=plain4,hybrid1",
    ]
    ended = launched("figures", *words, cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    assert (tmp_path / "here/architectures.png").read_bytes()[:4] == b"\x89PNG"
    lines = json.loads((tmp_path / "here/architectures.json").read_text())
    assert [line["clients"] for line in lines] == [2, 2]
    assert lines[0]["types"] == ["input", "c3_8_k3_s1", *["c8_8_k3_s1"] * 2, "linear8_10"]
    assert lines[0]["edges"] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    page = (tmp_path / "here/architectures.md").read_text()
    assert "| plain4 | 2 | 5 | 4 | 1,506 |" in page


def test_the_figure_needs_models_that_describe_their_layers(tmp_path):
    words = ["--figure=architectures", f"--config={ROOT}/configs/fl60.py:local"]
    ended = launched("figures", *words, "--config.model.name=gru", cwd=tmp_path)
    assert ended.status == 2 and ended.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
