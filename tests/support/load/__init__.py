"""Load: latencies, errors and memory of a real service."""
