"""Units in which metrics are printed."""

# metric -> (factor, name of the unit)
UNITS = {"accuracy": (100, "%"), "auc": (100, "%"), "mse": (1000, "1e-3")}
