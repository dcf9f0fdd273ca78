"""TODO benchmarks/fidelity."""
