"""Sweeps: points to try, the log of trials, the leaderboard, the Ray backend."""
