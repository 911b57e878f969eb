"""Small federations and settings, which `graphfl_jax.testing` has for users too."""

from graphfl_jax.testing.federations import SMALL, rename_clients, small_config, two_clusters

__all__ = ["SMALL", "rename_clients", "small_config", "two_clusters"]
