"""ResNet-18: its layers, its statistics and its weights, against NumPy."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from graphfl_jax import tree
from graphfl_jax.build import build_experiment
from graphfl_jax.data.custom import from_arrays
from graphfl_jax.devices import client_mesh
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models import batch_statistics, resnet
from graphfl_jax.models.images import Conv, max_pool
from graphfl_jax.models.resnet import resnet18
from graphfl_jax.program import Program
from tests.federations import small_config

KEY = jax.random.key(0)
SMALL = {"inputs": (16, 16, 3), "outputs": 4, "task": CLASSIFICATION, "width": 2}


def images(count, seed=0):
    shape = (count, *SMALL["inputs"])
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def examples(count, padding=0, seed=0):
    """`count` examples and white images as padding."""
    x = np.pad(images(count, seed), [(0, padding), *[(0, 0)] * 3], constant_values=255)
    return Examples(jnp.asarray(x), jnp.arange(count + padding) % 4, jnp.int32(count))


@functools.cache
def small():
    """A model, its compiled `recalibrate` and `apply`, and parameters with random scales."""
    model = resnet18(**SMALL)
    params = jax.jit(model.init)(KEY)
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: leaf + rng.normal(size=leaf.shape).astype(np.float32) / 10, params
    )
    return model, jax.jit(model.recalibrate), jax.jit(model.apply), params


# ---- layers


def conv_in_numpy(x, kernel, stride, padding):
    """[B, C, H, W] with a kernel [O, C, k, k], output pixel by output pixel."""
    size = kernel.shape[-1]
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    rows, columns = (range(0, side - size + 1, stride) for side in x.shape[2:])
    return np.stack(
        [
            np.stack(
                [
                    np.einsum("bcij,ocij->bo", x[:, :, i : i + size, j : j + size], kernel)
                    for j in columns
                ],
                axis=-1,
            )
            for i in rows
        ],
        axis=-2,
    )


@pytest.mark.slow
@pytest.mark.parametrize("size, stride", [(1, 1), (1, 2), (3, 1), (3, 2), (7, 1), (7, 2)])
def test_every_lowering_computes_the_convolution(size, stride):
    """Values and gradients, for one client and for three clients with different kernels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, 9, 8, 2)).astype(np.float32)
    kernels = rng.normal(size=(3, size, size, 4, 5)).astype(np.float32) / size
    weights = rng.normal(size=5).astype(np.float32)
    padding = size // 2

    def run(lowering):
        layer = Conv(5, size, stride, padding, lowering)

        def loss(x, kernel):
            out = layer.apply({"params": {"kernel": kernel}}, x)
            return jnp.sum(jnp.sin(out) * weights[:, None, None, None]), out

        gradient = jax.value_and_grad(loss, (0, 1), has_aux=True)
        return jax.jit(gradient)(x[0], kernels[0]), jax.jit(jax.vmap(gradient))(x, kernels)

    xla, *others = map(run, ("xla", "rows", "im2col", "winograd"))
    for other in others:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), xla, other
        )
    ((_, single), _), ((_, each), _) = xla
    for out, i in ((single, 0), (each[0], 0), (each[2], 2)):
        expected = conv_in_numpy(
            x[i].transpose(3, 0, 1, 2), kernels[i].transpose(3, 2, 0, 1), stride, padding
        )
        np.testing.assert_allclose(out, expected.transpose(1, 2, 3, 0), rtol=1e-4, atol=1e-3)


def test_a_convolution_of_size_one_is_a_matrix_product():
    layer = Conv(5, 1, 1, 0, "im2col")
    kernel = jnp.ones((1, 1, 3, 5))
    program = jax.make_jaxpr(lambda x: layer.apply({"params": {"kernel": kernel}}, x))
    names = [eqn.primitive.name for eqn in program(jnp.ones((3, 4, 4, 2))).eqns]
    assert names.count("dot_general") == 1
    assert "conv_general_dilated" not in names


def test_kernels_are_initialised_with_variance_two_over_fan_out():
    """Up to 4 standard errors of a mean of squares of normal variables."""
    layer = Conv(64, 3, 1, 1, "im2col")
    kernel = layer.init(KEY, jnp.zeros((32, 4, 4, 1)))["params"]["kernel"]
    squares = np.square(np.asarray(kernel)) * (3 * 3 * 64) / 2
    assert abs(squares.mean() - 1) < 4 * np.sqrt(2 / squares.size)


@pytest.mark.parametrize("height, width", [(8, 8), (7, 6), (1, 1)])
def test_max_pooling_takes_the_largest_of_each_window(height, width):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, height, width, 3)).astype(np.float32) - 5
    weights = rng.normal(size=(2, 4, -(-height // 2), -(-width // 2), 3)).astype(np.float32)
    expected, gradient = np.zeros_like(weights), np.zeros_like(x)
    for n, c, i, j, b in np.ndindex(weights.shape):
        rows = slice(max(2 * i - 1, 0), 2 * i + 2)
        columns = slice(max(2 * j - 1, 0), 2 * j + 2)
        window = x[n, c, rows, columns, b]
        expected[n, c, i, j, b] = window.max()
        row, column = np.unravel_index(window.argmax(), window.shape)
        gradient[n, c, rows.start + row, columns.start + column, b] += weights[n, c, i, j, b]
    np.testing.assert_array_equal(jax.jit(jax.vmap(max_pool))(x), expected)
    actual = jax.jit(jax.vmap(jax.grad(lambda x, w: jnp.sum(max_pool(x) * w))))(x, weights)
    np.testing.assert_allclose(actual, gradient, rtol=1e-6, atol=1e-6)


def test_the_first_of_equal_maxima_gets_the_gradient():
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x))))(jnp.ones((1, 4, 4, 1)))
    gradient = gradient[0, :, :, 0]
    # The windows start at rows and columns 0 (clipped at the padding) and 1.
    np.testing.assert_array_equal(gradient, [[1, 1, 0, 0], [1, 1, 0, 0], [0] * 4, [0] * 4])


def test_max_pooling_propagates_nan():
    places = np.zeros((16, 1, 4, 4, 1), np.float32)
    places.reshape(16, 16)[np.diag_indices(16)] = np.nan
    pooled = jax.jit(jax.vmap(max_pool))(places)
    assert np.isnan(pooled).any(axis=(1, 2, 3, 4)).all()


# ---- the network


@pytest.mark.parametrize("outputs, size", [(1000, 11_689_512), (4, 11_178_564)])
def test_the_network_has_the_size_of_torchvisions(outputs, size):
    model = resnet18(**SMALL | {"outputs": outputs, "width": 64, "inputs": (224, 224, 3)})
    params = jax.eval_shape(model.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size
    logits = jax.eval_shape(model.apply, params, jnp.zeros((2, 224, 224, 3), jnp.uint8))
    assert logits.shape == (2, outputs)


@pytest.mark.slow
def test_kernels_and_normalisations_have_their_own_names():
    """20 of each: 1 in the stem, 16 in the blocks, 3 in their skip connections."""
    body = jax.eval_shape(small()[0].init, KEY)["body"]
    names = [path[-1].key for path, _ in jax.tree.leaves_with_path(body)]
    assert [names.count(name) for name in ("kernel", "scale", "bias")] == [20, 20, 20]
    assert len(names) == 60


def torchvision_tensors(width, outputs, seed=0):
    """Random tensors with the names and shapes of torchvision's ResNet-18."""
    rng = np.random.default_rng(seed)

    def norm(name, channels):
        return {
            f"{name}.weight": rng.uniform(0.5, 1.5, channels),
            f"{name}.bias": rng.normal(size=channels) / 4,
            f"{name}.running_mean": np.full(channels, np.nan),
            f"{name}.running_var": np.full(channels, np.nan),
            f"{name}.num_batches_tracked": np.array(7),
        }

    def conv(name, features, channels, size):
        scale = (channels * size**2) ** -0.5
        return {f"{name}.weight": scale * rng.normal(size=(features, channels, size, size))}

    tensors = conv("conv1", width, 3, 7) | norm("bn1", width)
    channels = width
    for stage in (1, 2, 3, 4):
        features = width * 2 ** (stage - 1)
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            tensors |= conv(f"{name}.conv1", features, channels, 3)
            tensors |= norm(f"{name}.bn1", features)
            tensors |= conv(f"{name}.conv2", features, features, 3)
            tensors |= norm(f"{name}.bn2", features)
            if channels != features:
                tensors |= conv(f"{name}.downsample.0", features, channels, 1)
                tensors |= norm(f"{name}.downsample.1", features)
            channels = features
    tensors |= {
        "fc.weight": rng.normal(size=(outputs, channels)),
        "fc.bias": rng.normal(size=outputs),
    }
    return {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}


def network_in_numpy(tensors, x, averages):
    """Logits of images [B, H, W, 3], and the mean and unbiased variance of every norm.

    Normalises by `averages`, or by the batch if these are None.
    """
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    statistics = {}

    def norm(name, x):
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        statistics[name] = mean, x.var((0, 2, 3), ddof=1)
        if averages:
            mean, variance = averages[name]
        channels = (slice(None), None, None)
        x = (x - mean[channels]) / np.sqrt(variance[channels] + 1e-5)
        return x * tensors[f"{name}.weight"][channels] + tensors[f"{name}.bias"][channels]

    def conv(name, x, stride, padding):
        return conv_in_numpy(x, tensors[f"{name}.weight"], stride, padding)

    x = (x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    x = np.maximum(norm("bn1", conv("conv1", x.transpose(0, 3, 1, 2), 2, 3)), 0)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])  # all values are at least 0
    shifts = [padded[:, :, i : i + 7 : 2, j : j + 7 : 2] for i, j in np.ndindex(3, 3)]
    x = np.max(shifts, axis=0)  # [B, C, 8, 8] -> [B, C, 4, 4]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = np.maximum(norm(f"{name}.bn1", conv(f"{name}.conv1", x, stride, 1)), 0)
            out = norm(f"{name}.bn2", conv(f"{name}.conv2", out, 1, 1))
            if stride == 2:
                x = norm(f"{name}.downsample.1", conv(f"{name}.downsample.0", x, 2, 0))
            x = np.maximum(out + x, 0)
    return x.mean((2, 3)) @ tensors["fc.weight"].T + tensors["fc.bias"], statistics


@pytest.mark.release
def test_pretrained_weights_give_the_logits_of_numpy(tmp_path):
    """With the statistics of the batch, and after recalibration with the client's."""
    tensors = torchvision_tensors(width=2, outputs=4)
    save_file(tensors, tmp_path / "weights.safetensors")
    model = resnet18(**SMALL | {"weights": str(tmp_path / "weights.safetensors")})
    params = jax.jit(model.init)(KEY)
    train, test = examples(12, padding=3), images(5, seed=1)

    expected, statistics = network_in_numpy(tensors, np.asarray(train.x[:12]), None)
    apply, recalibrate = small()[2], small()[1]
    np.testing.assert_allclose(apply(params, train.x[:12]), expected, rtol=1e-3, atol=1e-3)
    recalibrated = recalibrate(params, train)
    expected, _ = network_in_numpy(tensors, test, statistics)
    np.testing.assert_allclose(apply(recalibrated, test), expected, rtol=1e-3, atol=1e-3)
    actual = recalibrated["body"]["statistics"]["layer2_0"]["downsample_1"]
    mean, variance = statistics["layer2.0.downsample.1"]
    np.testing.assert_allclose(actual["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual["variance"], variance, rtol=1e-4, atol=1e-5)


# ---- statistics


@pytest.mark.slow
def test_predictions_after_recalibration_do_not_depend_on_the_batch():
    _, recalibrate, apply, params = small()
    recalibrated, x = recalibrate(params, examples(12, padding=3)), images(5, seed=2)
    others = np.concatenate([x[:1], images(4, seed=3)])
    np.testing.assert_allclose(
        apply(recalibrated, x)[0], apply(recalibrated, others)[0], rtol=1e-5
    )
    # With the statistics of the batch they do.
    assert np.abs(apply(params, x)[0] - apply(params, others)[0]).max() > 1e-2


def test_statistics_are_of_a_clients_examples_without_padding():
    """Also if clients with different counts are stacked."""
    model, recalibrate, _, params = small()
    clients = [examples(12, padding=3), examples(7, padding=8, seed=1)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    together = jax.jit(jax.vmap(model.recalibrate, in_axes=(None, 0)))(params, stacked)
    for i, client in enumerate(clients):
        dark = client._replace(x=client.x.at[client.count :].set(0))
        alone = recalibrate(params, dark)["body"]["statistics"]
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            alone,
            tree.take(together["body"]["statistics"], i),
        )


def test_statistics_are_of_evenly_spread_examples(monkeypatch):
    """Every second example is used if there are twice as many as the limit."""
    model, recalibrate, _, params = small()
    many = examples(30)
    few = many._replace(x=many.x[::2], y=many.y[::2], count=jnp.int32(15))
    monkeypatch.setattr(batch_statistics, "RECALIBRATION_EXAMPLES", 15)
    recalibrated = jax.jit(model.recalibrate)(params, many)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        recalibrated,
        recalibrate(params, few),
    )


def test_recalibrating_again_ignores_the_old_statistics():
    model, _, _, params = small()
    first, second = examples(9, padding=6, seed=4), examples(12, padding=3)

    @jax.jit
    def both(params):
        once = model.recalibrate(params, second)
        return model.recalibrate(model.recalibrate(params, first), second), once

    jax.tree.map(np.testing.assert_array_equal, *both(params))


@pytest.mark.slow
def test_the_objective_does_not_depend_on_padding():
    model, _, apply, params = small()
    batch = examples(5, padding=2)
    objective = jax.jit(jax.value_and_grad(model.objective))
    other = batch._replace(x=batch.x.at[5:].set(3), y=batch.y.at[5:].set(0))
    result = objective(params, batch, KEY)
    jax.tree.map(np.testing.assert_array_equal, result, objective(params, other, KEY))
    losses = CLASSIFICATION.loss(apply(params, batch.x[:5]), batch.y[:5])
    np.testing.assert_allclose(result[0], losses.mean(), rtol=1e-5)
    empty = objective(params, batch._replace(count=jnp.int32(0)), KEY)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(empty))


# ---- weights


def test_a_head_with_another_number_of_classes_stays_random(tmp_path):
    path = tmp_path / "weights.safetensors"
    tensors = torchvision_tensors(width=2, outputs=10)
    save_file(tensors, path)
    params = {
        outputs: jax.jit(resnet18(**SMALL | {"weights": str(path), "outputs": outputs}).init)(
            KEY
        )
        for outputs in (4, 10)
    }
    random = jax.jit(small()[0].init)(KEY)
    jax.tree.map(np.testing.assert_array_equal, params[4]["head"], random["head"])
    np.testing.assert_array_equal(params[10]["head"]["kernel"], tensors["fc.weight"].T)
    np.testing.assert_array_equal(params[10]["head"]["bias"], tensors["fc.bias"])
    jax.tree.map(np.testing.assert_array_equal, params[4]["body"], params[10]["body"])
    block = params[4]["body"]["layer3_1"]
    np.testing.assert_array_equal(
        block["conv2"]["kernel"], tensors["layer3.1.conv2.weight"].transpose(2, 3, 1, 0)
    )
    np.testing.assert_array_equal(block["bn2"]["scale"], tensors["layer3.1.bn2.weight"])
    np.testing.assert_array_equal(block["bn2"]["bias"], tensors["layer3.1.bn2.bias"])


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(torchvision_tensors(width=2, outputs=4), path)
    reads = resnet._read.cache_info().misses
    for _ in range(3):
        resnet18(**SMALL | {"weights": str(path)})
    assert resnet._read.cache_info().misses == reads + 1
    save_file(torchvision_tensors(width=3, outputs=4), path)
    with pytest.raises(ValueError, match="another architecture"):
        resnet18(**SMALL | {"weights": str(path)})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"layer1.0.conv3.weight": np.zeros((2, 2, 1, 1))}, "layer1.0.conv3.weight is unknown"),
        ({"layer4.1.bn1.bias": None}, "layer4.1.bn1.bias is missing"),
        ({"layer4.1.bn1.bias": np.zeros(3)}, r"layer4.1.bn1.bias has shape \[3\] and not \[16"),
        ({"conv1.weight": np.zeros((2, 3, 3, 3))}, r"\[2, 3, 3, 3\] and not \[2, 3, 7, 7\]"),
        ({"conv1.weight": np.zeros(())}, r"conv1.weight has shape \[\] and not"),
    ],
)
def test_weights_of_another_architecture_are_refused(tmp_path, change, message):
    tensors = torchvision_tensors(width=2, outputs=4) | change
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(tensors, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=message) as error:
        resnet18(**SMALL | {"weights": str(tmp_path / "weights.safetensors")})
    assert "another architecture" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, message",
    [
        ("weights.safetensors", "is damaged or is not a .safetensors file"),
        ("weights.bin", "give a file that ends in .safetensors or .pth"),
        ("weights.pth", "run pip install torch"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, monkeypatch, name, message):
    monkeypatch.setitem(sys.modules, "torch", None)  # hides an installed PyTorch
    (tmp_path / name).write_bytes(b"neither\nformat")
    with pytest.raises(ValueError, match=message) as error:
        resnet18(**SMALL | {"weights": str(tmp_path / name)})
    assert "model.weights" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="model.weights"):
        resnet18(**SMALL | {"weights": str(tmp_path / "none.pth")})


def test_a_state_dict_of_pytorch_is_read_without_executing_code(tmp_path, monkeypatch):
    """With a replacement for PyTorch, which need not be installed."""
    tensors = torchvision_tensors(width=2, outputs=4)

    class Tensor:
        def __init__(self, values):
            self.float = lambda: types.SimpleNamespace(numpy=lambda: values)

    def load(path, *, map_location, weights_only):
        assert map_location == "cpu" and weights_only
        if path.endswith("epoch.pth"):
            return {"epoch": 3}
        return {name: Tensor(values) for name, values in tensors.items()}

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    for name in ("weights.pth", "epoch.pth"):
        (tmp_path / name).write_bytes(b"")
    params = jax.jit(resnet18(**SMALL | {"weights": str(tmp_path / "weights.pth")}).init)(KEY)
    np.testing.assert_array_equal(params["body"]["bn1"]["scale"], tensors["bn1.weight"])
    with pytest.raises(ValueError, match="is not a .pth file of tensors"):
        resnet18(**SMALL | {"weights": str(tmp_path / "epoch.pth")})


# ---- fields


@pytest.mark.parametrize("shape", [(16,), (16, 16, 1)])
def test_examples_that_are_not_images_are_refused(shape):
    with pytest.raises(ValueError, match="images of shape .*model.name=mlp") as error:
        resnet18(**SMALL | {"inputs": shape})
    assert str(list(shape)) in str(error.value)


@pytest.mark.release
def test_a_configuration_builds_a_federation_of_networks():
    """A round and its evaluation are traced over two devices, but not compiled."""
    client = np.repeat(np.arange(4), [10, 14, 16, 18])
    federation = from_arrays(images(58), np.arange(58) % 2, client)
    config = small_config(
        model__name="resnet18", model__width=2, algorithm__name="fedavg", cohort_size=2
    )
    experiment = build_experiment(config, federation)
    program = Program(
        experiment.build, groups=experiment.groups, mesh=client_mesh(2)
    ).compiled()
    inputs = KEY, experiment.hparams, experiment.federation.data
    state = jax.eval_shape(program.start, *inputs)
    after, _ = jax.eval_shape(program.advance, state, *inputs, jnp.int32(1))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    scores, *_ = jax.eval_shape(program.evaluate, state, *inputs)
    assert {point: score.shape for point, score in scores["test"].items()} == {
        point: (4,) for point in "GLP"
    }
