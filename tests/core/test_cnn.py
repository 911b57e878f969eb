"""Small convolutional networks: sizes, outputs, lowerings, and gradients in micro-batches."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.configs import change, custom
from graphfl_jax.core import ClientModel
from graphfl_jax.data.custom import from_arrays
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.architectures import architectures
from graphfl_jax.models.cnn import cnn, conv3, lenet
from graphfl_jax.models.convolutions import LARGEST, LOWERINGS, TILE, convolve, transforms
from graphfl_jax.models.images import augment_images, halve
from graphfl_jax.models.resnet import resnet18

KEY = jax.random.key(5)
SHAPE = (16, 17, 3)


@functools.cache
def model_of(factory, lowering="auto", shape=SHAPE, outputs=4):
    return factory(inputs=shape, outputs=outputs, task=CLASSIFICATION, lowering=lowering)


def batch_of(rows, count):
    rng = np.random.default_rng(rows)
    x = rng.integers(0, 256, (rows, *SHAPE)).astype(np.uint8)
    y = rng.integers(0, 4, rows).astype(np.int32)
    return jax.tree.map(jnp.asarray, Examples(x, y, np.int32(count)))


def assert_close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


@pytest.mark.parametrize(
    "factory, shape, outputs, size",
    [
        (lenet, (28, 28, 1), 10, 61_706),
        (lenet, (32, 32, 3), 10, 62_006),
        (cnn, (28, 28, 1), 10, 1_663_370),
        (conv3, (28, 28, 1), 10, 320 + 18_496 + 36_928 + 577 * 120 + 121 * 84 + 85 * 10),
        (conv3, (32, 32, 3), 10, 896 + 18_496 + 36_928 + 1025 * 120 + 121 * 84 + 85 * 10),
    ],
)
def test_networks_have_the_sizes_of_their_layers(factory, shape, outputs, size):
    params = jax.eval_shape(model_of(factory, shape=shape, outputs=outputs).init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size


def by_hand(x, kernel, padding):
    """A convolution of [C, H, W, B] by its definition, in NumPy."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    size = len(kernel)
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    out = np.zeros((kernel.shape[-1], height, width, x.shape[-1]))
    for i in range(height):
        for j in range(width):
            window = x[:, i : i + size, j : j + size]
            out[:, i, j] = np.einsum("chwb,hwcf->fb", window, kernel)
    return out


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("padding", [0, 2])
def test_every_lowering_computes_the_convolution(padding, lowering):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(3, 6, 7, 4)), rng.normal(size=(5, 5, 3, 2))
    actual = jax.jit(functools.partial(convolve, padding=padding, lowering=lowering))(
        *map(jnp.float32, (x, kernel))
    )
    np.testing.assert_allclose(actual, by_hand(x, kernel, padding), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", range(2, LARGEST + 1))
def test_minimal_filtering_is_exact_for_one_row(size):
    rng = np.random.default_rng(0)
    row, kernel = rng.normal(size=TILE + size - 1), rng.normal(size=size)
    a, g, b_transposed = transforms(size)
    actual = a.T @ ((g @ kernel) * (b_transposed @ row))
    np.testing.assert_allclose(actual, np.correlate(row, kernel), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size, channels", [(5, 16), (5, 8), (3, 16)])
def test_large_kernels_with_many_channels_are_filtered_on_a_cpu(size, channels):
    x, kernel = jnp.ones((channels, 8, 8, 2)), jnp.ones((size, size, channels, 3))
    lowered = {}
    for lowering in ("auto", "im2col", "winograd"):
        one_way = functools.partial(convolve, padding=0, lowering=lowering)
        lowered[lowering] = str(jax.make_jaxpr(one_way)(x, kernel))
    assert lowered["im2col"] != lowered["winograd"]
    expected = "winograd" if (size, channels) == (5, 16) else "im2col"
    assert lowered["auto"] == lowered[expected]


@pytest.mark.parametrize("channels, expected", [(6, "im2col"), (16, "xla")])
def test_a_gpu_computes_convolutions_of_few_channels_as_products(
    channels, expected, monkeypatch
):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x, kernel = jnp.ones((channels, 8, 8, 2)), jnp.ones((5, 5, channels, 3))
    lowered = {}
    for lowering in ("auto", "im2col", "xla"):
        one_way = functools.partial(convolve, padding=0, lowering=lowering)
        lowered[lowering] = str(jax.make_jaxpr(one_way)(x, kernel))
    assert lowered["im2col"] != lowered["xla"]
    assert lowered["auto"] == lowered[expected]


def test_pooling_takes_the_largest_of_each_window_and_drops_a_last_odd_row():
    x = np.random.default_rng(0).normal(size=(2, 5, 6, 3)).astype(np.float32)
    windows = x[:, :4].reshape(2, 2, 2, 3, 2, 3)
    np.testing.assert_array_equal(halve(jnp.asarray(x)), windows.max((2, 4)))


@pytest.mark.slow
def test_lenet_applies_its_layers_in_order():
    """Against NumPy: convolution, ReLU, pooling, twice; two dense layers; the head."""
    model, batch = model_of(lenet), batch_of(3, 3)
    params = jax.device_get(model.init(KEY))
    x = np.moveaxis(np.asarray(batch.x) / 127.5 - 1, (0, 3), (3, 0))
    for name in ("conv1", "conv2"):
        layer = params["body"][name]
        x = by_hand(x, layer["kernel"], 0) + layer["bias"][:, None, None, None]
        height, width = x.shape[1] // 2, x.shape[2] // 2
        x = np.maximum(x, 0)[:, : 2 * height, : 2 * width]
        x = x.reshape(len(x), height, 2, width, 2, -1).max((2, 4))
    x = x.reshape(-1, 3).T
    for name in ("dense1", "dense2"):
        x = np.maximum(x @ params["body"][name]["kernel"] + params["body"][name]["bias"], 0)
    expected = x @ params["head"]["kernel"] + params["head"]["bias"]
    actual = jax.jit(model.apply)(params, batch.x)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lowering",
    [
        pytest.param(name, marks=[pytest.mark.release] * (name == "winograd"))
        for name in LOWERINGS
    ],
)
def test_conv3_is_the_network_of_flax_layers(lowering):
    """Activations are flattened by channel, row and column."""
    model, batch = model_of(conv3, lowering), batch_of(3, 3)
    params = jax.device_get(model.init(KEY))
    body = params["body"]
    x = np.asarray(batch.x) / np.float32(127.5) - 1
    for name, features in (("conv1", 32), ("conv2", 64), ("conv3", 64)):
        layer = nn.Conv(features, (3, 3), padding="SAME")
        x = nn.max_pool(nn.relu(layer.apply({"params": body[name]}, x)), (2, 2), (2, 2))
    x = np.moveaxis(x, 3, 1).reshape(3, -1)
    for name, features in (("dense1", 120), ("dense2", 84)):
        x = nn.relu(nn.Dense(features).apply({"params": body[name]}, x))
    expected = nn.Dense(4).apply({"params": params["head"]}, x)
    assert set(body) == {"conv1", "conv2", "conv3", "dense1", "dense2"}
    np.testing.assert_allclose(jax.jit(model.apply)(params, batch.x), expected, atol=1e-5)


def test_floats_are_not_scaled():
    model, batch = model_of(lenet), batch_of(3, 3)
    params, apply = model.init(KEY), jax.jit(model.apply)
    floats = batch.x.astype(jnp.float32) / 127.5 - 1
    np.testing.assert_allclose(apply(params, batch.x), apply(params, floats), atol=1e-6)


@functools.partial(jax.jit, static_argnums=0)
def derivatives(in_parts, params, batch):
    """The loss, its gradient, and a product with its second derivatives."""
    model = model_of(lenet)
    objective = model.objective if in_parts else functools.partial(ClientModel.objective, model)

    def loss(params):
        return objective(params, batch, KEY)

    product = jax.jvp(jax.grad(loss), (params,), (params,))[1]
    return loss(params), *jax.value_and_grad(loss)(params), product


@pytest.mark.slow
@pytest.mark.parametrize("count", [37, 30, 7, 0])
def test_micro_batches_have_the_derivatives_of_the_batch(count):
    """37 rows are two parts of 19, of which one is padded; a part may have no real example."""
    params, batch = model_of(lenet).init(KEY), batch_of(37, count)
    assert_close(
        derivatives(True, params, batch),
        derivatives(False, params, batch),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "factory, shape",
    [(lenet, (15, 16, 3)), (lenet, (28, 28)), (cnn, (9,)), (conv3, (28, 7, 1))],
)
def test_examples_that_are_no_images_of_a_suitable_size_are_refused(factory, shape):
    with pytest.raises(ValueError, match="^model.name='.*' takes images of shape .*.name=mlp"):
        model_of(factory, shape=shape)


@pytest.mark.parametrize(
    "factory, shape",
    [
        (lenet, (1, 28, 28)),
        (cnn, (3, 32, 32)),
        (cnn, (4, 32, 48)),
        (architectures, (4, 32, 32)),
        (resnet18, (3, 32, 32)),
    ],
)
def test_images_with_the_channels_first_are_to_be_turned(factory, shape):
    with pytest.raises(ValueError, match=r"; move the channels .* np.moveaxis\(x, 1, -1\)$"):
        factory(inputs=shape, outputs=2, task=CLASSIFICATION)
    turned = np.moveaxis(np.zeros((2, *shape)), 1, -1)
    factory(inputs=turned.shape[1:], outputs=2, task=CLASSIFICATION)


def test_images_with_opacity_first_are_to_be_turned_and_lose_it_for_a_network_of_colours():
    with pytest.raises(ValueError, match=r"; move .*, by np.moveaxis\(x, 1, -1\)\[..., :3\]$"):
        resnet18(inputs=(4, 32, 32), outputs=2, task=CLASSIFICATION)


@pytest.mark.release
def test_images_of_a_user_are_learned():
    """Bright and dark images. Batches are cut, and clients are split over devices."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    x = (rng.integers(0, 100, (120, *SHAPE)) + 120 * y[:, None, None, None]).astype(np.uint8)
    federation = from_arrays(x, y, np.repeat(range(4), 30))
    sizes = {"model.name": "lenet", "rounds": 10, "cohort_size": 4, "local_steps": 10}
    sizes |= {"batch_size": 40, "hparams.client_lr": 0.05}
    config = change(custom.get_config("fedavg"), sizes)
    scores = graphfl_jax.run(config, federation).rows[-1]["scores"]["test"]
    assert scores["G"].mean() > 0.95


def test_augmented_images_are_moved_and_mirrored():
    """Every result is one of the 2 x 81 crops, made by loops, and many of them occur."""
    images = batch_of(64, 64).x
    results = np.asarray(augment_images(images, KEY))
    actual = set()
    for image, result in zip(np.asarray(images), results, strict=True):
        added = np.zeros((24, 25, 3), np.uint8)
        added[4:20, 4:21] = image
        crops = {
            (i, j, step): added[i : i + 16, j : j + 17][:, ::step]
            for i in range(9)
            for j in range(9)
            for step in (1, -1)
        }
        (place,) = (place for place, crop in crops.items() if (crop == result).all())
        actual.add(place)
    rows, across, steps = (set(values) for values in zip(*actual, strict=True))
    assert rows == across == set(range(9)) and steps == {1, -1} and len(actual) > 40


@pytest.mark.slow
def test_augmentation_is_for_training_only():
    plain, model = (
        lenet(inputs=SHAPE, outputs=4, task=CLASSIFICATION, augment=augment)
        for augment in (False, True)
    )
    params, batch = model.init(KEY), batch_of(8, 8)
    np.testing.assert_array_equal(model.apply(params, batch.x), plain.apply(params, batch.x))
    moved = batch._replace(x=augment_images(batch.x, KEY))
    expected = plain.objective(params, moved, KEY)
    np.testing.assert_allclose(model.objective(params, batch, KEY), expected, rtol=1e-6)
    assert abs(expected - plain.objective(params, batch, KEY)) > 1e-4
