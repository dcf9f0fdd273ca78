"""TODO benchmarks/load."""
