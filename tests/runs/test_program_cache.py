"""JAX's cache with checked entries: a wrong entry is replaced, and never executed."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from graphfl_jax.runs import program_cache
from graphfl_jax.runs.program_cache import CheckedCache

KEY, OTHER, VALUE = "jit_sum-0123", "jit_mean-4567", bytes(range(256))


@pytest.fixture
def cache(tmp_path):
    return CheckedCache(str(tmp_path), max_size=-1)


def file_of(cache, key=KEY):
    (path,) = cache.path.glob(f"{key}*")
    return path


def test_an_entry_is_read_again(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, VALUE)
    assert cache.get(KEY) == VALUE


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[32:],  # as JAX's own cache writes it
        lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
        lambda content: bytes([content[0] ^ 1]) + content[1:],
    ],
    ids=["empty", "truncated", "no digest", "flipped content", "flipped digest"],
)
def test_a_damaged_entry_is_replaced(cache, damage):
    cache.put(KEY, VALUE)
    path = file_of(cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert cache.get(KEY) is None
    cache.put(KEY, VALUE)
    assert file_of(cache).read_bytes() == whole
    assert cache.get(KEY) == VALUE


def test_entries_that_were_swapped_are_replaced(cache):
    cache.put(KEY, VALUE)
    cache.put(OTHER, VALUE)
    first, second = file_of(cache), file_of(cache, OTHER)
    swapped = first.read_bytes(), second.read_bytes()
    first.write_bytes(swapped[1])
    second.write_bytes(swapped[0])
    assert cache.get(KEY) is cache.get(OTHER) is None
    cache.put(KEY, VALUE)
    assert cache.get(KEY) == VALUE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which this process keeps what it compiles, during one test."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setattr(
        program_cache.cache_of_jax, "LRUCache", program_cache.cache_of_jax.LRUCache
    )
    compilation_cache.reset_cache()
    program_cache.keep_in(tmp_path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_jax_executes_no_wrong_entry_and_writes_it_again(folder):
    """With JAX's own cache, swapped entries end in an AssertionError, and damaged ones stay."""

    def results():
        """Of functions that JAX traces anew. The second has one result more."""

        def first(x):
            return jnp.sin(x) + 1

        def second(x):
            return jnp.cos(x) - 1, x

        x = jnp.float32(0)
        return float(jax.jit(first)(x)), float(jax.jit(second)(x)[0])

    def entries():
        (one,), (two,) = folder.glob("jit_first-*"), folder.glob("jit_second-*")
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (one, two)}

    assert results() == (1, 0)
    whole = entries()
    assert results() == (1, 0)
    assert entries() == whole  # both were read
    (one, _), (two, (other, _)) = whole.items()
    one.write_bytes(other)
    two.write_bytes(b"damaged")
    assert results() == (1, 0)
    replaced = entries()
    assert replaced[one][0] != other and replaced[two][0] != b"damaged"
    assert results() == (1, 0)
    assert entries() == replaced
