"""Configurations: each file's get_config() returns a locked ConfigDict over `base`."""
