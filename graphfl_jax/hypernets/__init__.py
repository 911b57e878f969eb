"""Networks that generate client models."""
