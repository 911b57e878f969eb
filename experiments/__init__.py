"""Programs to run: ``python -m experiments.NAME --config=configs/FILE.py``."""
