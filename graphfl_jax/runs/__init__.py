"""Runs: one or many at once, their folder, checkpoints and results."""
