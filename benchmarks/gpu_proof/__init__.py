"""TODO benchmarks/gpu_proof."""
