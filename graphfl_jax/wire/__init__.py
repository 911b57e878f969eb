"""Malicious clients and defences against them."""
