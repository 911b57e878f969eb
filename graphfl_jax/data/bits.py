"""Random bits by address: a function of numbers, for array operations over many clients."""

import numpy as np


def random_bits(seeds, numbers=0) -> np.ndarray:
    """64 random bits for each seed and number, by the function of SplitMix64 (Steele 2014).

    Bits for three numbers are ``random_bits(random_bits(first, second), third)``.

    Args:
      seeds: whole numbers of any shape, or bits of an earlier call.
      numbers: whole numbers of a shape that broadcasts.

    Returns:
      An array of uint64. All its bits depend on all bits of the seed and the number.
    """
    z = np.asarray(np.asarray(seeds, np.uint64) + np.asarray(numbers, np.uint64))
    z += np.uint64(1)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def digest_rows(*arrays: np.ndarray) -> np.ndarray:
    """64 bits of the bytes of each row of arrays [n, ...]; equal for equal rows: [n] uint64."""
    bits = np.zeros(len(arrays[0]), np.uint64)
    for array in arrays:
        rows = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
        bits = random_bits(bits, _digest_bytes(rows))
    return bits


def _digest_bytes(rows):
    """64 bits of each row of bytes [n, B]."""
    words = -(-rows.shape[1] // 8)
    bits = np.empty(len(rows), np.uint64)
    some = max(1, 2**17 // words)  # rows at a time, so that their words stay in the cache
    padded = np.zeros((some, 8 * words), np.uint8)
    places = random_bits(np.arange(words))
    for begin in range(0, len(rows), some):
        part = rows[begin : begin + some]
        padded[: len(part), : rows.shape[1]] = part
        mixed = random_bits(padded[: len(part)].view(np.uint64), places)
        bits[begin : begin + some] = mixed.sum(axis=1, dtype=np.uint64)
    return bits
