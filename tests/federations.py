"""Small federations and settings, which `graphfl_jax.testing` has for users too."""

from graphfl_jax.testing.federations import SMALL, renamed, small_config, two_clusters

__all__ = ["SMALL", "renamed", "small_config", "two_clusters"]
