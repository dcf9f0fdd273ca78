"""Microbenchmarks, fits, and importers of published tables."""
