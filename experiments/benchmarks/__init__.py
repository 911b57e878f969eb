"""Benchmarks: timing, scaling, and the comparison with PyTorch."""
