"""Load: latencies, errors and memory of a real service. May import domino_tune and bench."""
