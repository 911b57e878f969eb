"""Units in which metrics are printed."""

# metric -> (factor, name of the unit)
UNITS = {"accuracy": (100, "%"), "auc": (100, "%"), "mse": (1000, "1e-3")}
# metric -> (smallest, largest) possible score
RANGES = {"accuracy": (0, 1), "auc": (0, 1), "mse": (0, float("inf"))}
