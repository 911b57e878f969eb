"""Compression of uploads: references in NumPy, moments, bits, feedback, and what is refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax import load, run
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.core import Client
from graphfl_jax.testing.subject import assert_equal, federation, small_config
from graphfl_jax.wire.compression import (
    SENDING,
    Compressor,
    Held,
    quantise,
    random_k,
    sign,
    sketch,
    top_k,
    with_compression,
)

KEY = jax.random.key(5)
UPDATE = np.random.default_rng(0).normal(size=40).astype(np.float32)
COMPRESSORS = {
    "quantise": quantise(bits=3),
    "top_k": top_k(compression_share=0.2),
    "random_k": random_k(compression_share=0.2),
    "sign": sign(),
    "sketch": sketch(rows=3, columns=16),
}


def numpy_read(name, update, key):
    """What the server reads, number by number in float64, of the settings above."""
    u = update.astype(np.float64)
    if name == "quantise":
        draws = np.float64(jax.random.uniform(key, update.shape))
        step = (u.max() - u.min()) / 7
        places = (u - u.min()) / step
        ups = [draw < place - int(place) for draw, place in zip(draws, places, strict=True)]
        return u.min() + step * np.array(
            [int(place) + up for place, up in zip(places, ups, strict=True)]
        )
    if name == "top_k":
        kept = sorted(range(40), key=lambda j: -abs(u[j]))[:8]
        return np.array([u[j] if j in kept else 0.0 for j in range(40)])
    if name == "random_k":
        order = np.asarray(jax.random.permutation(key, 40))
        return np.where(order < 8, 5 * u, 0.0)
    if name == "sign":
        return np.array([(1 if x > 0 else -1) * np.mean(np.abs(u)) for x in u])
    estimates = []
    for key_of_row in jax.random.split(key, 3):
        key_signs, key_columns = jax.random.split(key_of_row)
        signs = np.float64(jax.random.rademacher(key_signs, (40,), jnp.float32))
        columns = np.asarray(jax.random.randint(key_columns, (40,), 0, 16))
        sums = np.zeros(16)
        for j in range(40):
            sums[columns[j]] += signs[j] * u[j]
        estimates.append([signs[j] * sums[columns[j]] for j in range(40)])
    return np.median(estimates, axis=0)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_is_read_of_an_update_is_that_of_the_reference(name):
    read = jax.jit(COMPRESSORS[name].read)(UPDATE, KEY)
    np.testing.assert_allclose(read, numpy_read(name, UPDATE, KEY), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "compressor",
    [quantise(bits=1), quantise(bits=4), random_k(compression_share=0.2), sketch(rows=1)],
    ids=["one bit", "four bits", "random_k", "sketch"],
)
def test_the_mean_of_what_is_read_is_the_update(compressor):
    reads = jax.vmap(compressor.read, (None, 0))(UPDATE, jax.random.split(KEY, 4000))
    error = np.std(reads, axis=0) / np.sqrt(len(reads))
    assert (np.abs(np.mean(reads, axis=0) - UPDATE) <= 5 * error + 1e-6).all()


def test_quantised_numbers_are_on_a_grid_and_a_constant_update_is_whole():
    for bits in (1, 2, 8):
        read = np.asarray(quantise(bits=bits).read(UPDATE, KEY))
        assert len(np.unique(read)) <= 2**bits
        assert UPDATE.min() <= read.min() and read.max() <= UPDATE.max() + 1e-6
        assert np.abs(read - UPDATE).max() <= np.ptp(UPDATE) / (2**bits - 1) + 1e-6
    constant = np.full(6, 0.3, np.float32)
    np.testing.assert_array_equal(quantise(bits=2).read(constant, KEY), constant)


@pytest.mark.parametrize(
    "name, bits",
    [
        ("quantise", 3 * 40 + 64),
        ("top_k", 8 * (32 + 6)),
        ("random_k", 8 * 32 + 32),
        ("sign", 40 + 32),
        ("sketch", 32 * 3 * 16 + 32),
    ],
)
def test_bits_of_an_update(name, bits):
    assert COMPRESSORS[name].bits(40) == bits


def sending(compressor, feedback):
    """`Client.send` of a client whose upload has 3 floats and a count."""
    upload = {"model": jnp.zeros(3), "count": jnp.int32(0)}
    client = Client(None, local=lambda *values: None)
    algorithm = dataclasses.replace(
        build_experiment(small_config("fedavg"), federation()).build({"client_lr": 0.1}, 0),
        clients=(client,),
    )
    made = with_compression(algorithm, compressor, feedback, [upload])
    return made.client.send, made.upload_bits(upload)


def test_floats_are_compressed_and_whole_numbers_are_sent_as_they_are():
    send, bits = sending(sign(), False)
    before = {"model": jnp.array([1.0, 1.0, 1.0]), "count": jnp.int32(4)}
    after = {"model": jnp.array([3.0, 0.0, 1.0]), "count": jnp.int32(9)}
    memory, upload = send((), before, after, KEY)
    assert memory == () and upload["count"] == 9
    np.testing.assert_allclose(upload["model"], [2.0, 0.0, 1.0])  # 1 + sign([2, -1, 0]) * 1
    assert bits == 3 + 32 + 32


def test_with_feedback_all_that_was_lost_is_sent_later():
    """Over rounds, what was read and what is still lost add up to all updates."""
    send, _ = sending(top_k(compression_share=0.34), True)
    held, before = Held((), jnp.zeros(3)), {"model": jnp.zeros(3), "count": jnp.int32(0)}
    rng, total, read = np.random.default_rng(1), np.zeros(3), np.zeros(3)
    for _ in range(5):
        update = rng.normal(size=3)
        after = before | {"model": jnp.float32(update)}
        held, upload = send(held, before, after, KEY)
        total, read = total + update, read + upload["model"]
        assert np.count_nonzero(upload["model"]) == 1
        np.testing.assert_allclose(read + held.lost, total, rtol=1e-5, atol=1e-6)


def test_clients_compress_with_keys_of_their_own():
    seen = []

    def read(update, key):
        seen.append(key)
        return update

    send, _ = sending(Compressor(read, lambda size: 0.0), False)
    upload = {"model": jnp.ones(3), "count": jnp.int32(1)}
    send((), upload, upload, KEY)
    assert seen == [jax.random.fold_in(KEY, SENDING)]


CONFIG = small_config("fedavg", rounds=4, compression__name="top_k")


@pytest.mark.slow
def test_results_have_the_bytes_that_are_sent_with_the_share_of_each_run(tmp_path):
    """All runs have one kept program, with which their bytes are not kept."""

    def traffic(share):
        config = change(CONFIG, {"hparams.compression_share": share})
        result = run(config, federation(), keep_in=tmp_path / "kept")
        return result.results["communication"]

    with pytest.warns(RuntimeWarning, match="^compression.name='top_k' makes"):
        whole = traffic(1.0)
    floats = whole["down_bytes"] // 4
    assert whole["down_bytes"] == 4 * floats
    place = int(np.ceil(np.log2(floats)))
    assert whole["up_bytes"] == round(floats * (32 + place) / 8)
    for share in (0.5, 0.1):
        kept = max(1, round(share * floats))
        assert traffic(share)["up_bytes"] == round(kept * (32 + place) / 8)


@pytest.mark.slow
@pytest.mark.parametrize("feedback", [False, True])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(tmp_path, feedback):
    fields = {"compression.name": "random_k", "compression.feedback": feedback}
    config = change(CONFIG, fields | {"hparams.compression_share": 0.3, "eval_every": 2})
    whole = run(config, federation(), out=tmp_path / "whole")
    run(change(config, {"rounds": 2}), federation(), out=tmp_path / "parts")
    run(config, federation(), out=tmp_path / "parts", resume=True)
    resumed = json.loads((tmp_path / "parts/results.json").read_text())
    assert (
        resumed["scores"] == json.loads((tmp_path / "whole/results.json").read_text())["scores"]
    )
    fleets = [load(tmp_path / name) for name in ("whole", "parts")]
    for client in whole.clients:
        assert_equal(*(fleet.params(client) for fleet in fleets))


@pytest.mark.parametrize(
    "method, fields, message",
    [
        (
            "local",
            {},
            "compression.name='top_k' has no effect: the clients of algorithm.name='local' "
            "upload no floats; leave it empty",
        ),
        (
            "fedavg",
            {"hparams__compression_share": 1.5},
            "hparams.compression_share=1.5",
        ),
        (
            "fedavg",
            {"compression__name": "quantise", "compression__bits": 9},
            "compression.bits=9",
        ),
    ],
)
def test_compression_that_does_not_fit_is_refused_in_one_line(method, fields, message):
    with pytest.raises(ValueError) as error:
        build_experiment(
            small_config(method, **{"compression__name": "top_k"} | fields), federation()
        )
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
