"""Small federations and settings, which `graphfl_jax.testing` has for users too."""

from graphfl_jax.testing.subject import SMALL, small_config, two_clusters

__all__ = ["COST", "SMALL", "small_config", "two_clusters"]

# What training has taken in results.json: 50 steps and 9 MB of a client in a round, and 2 s.
COST = {
    "rounds": 10,
    "timing": {"client_steps_per_s": 1000.0, "train_s": 2.0},
    "communication": {"down_bytes": 5_000_000, "up_bytes": 4_000_000, "clients": 4},
}
