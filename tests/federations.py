"""Small federations and settings, which `graphfl_jax.testing` has for users too."""

from graphfl_jax.testing.subject import SMALL, small_config, two_clusters

__all__ = ["SMALL", "small_config", "two_clusters"]
