"""Comparisons of finished runs: their settings, scores and paired tests."""
