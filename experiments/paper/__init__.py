"""The papers' tables and figures: published numbers, cached runs, text."""
