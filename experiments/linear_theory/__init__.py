"""Panacea's theorems in the linear case: closed form, simulation, verdicts."""
