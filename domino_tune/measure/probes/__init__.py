"""TODO domino_tune/measure/probes."""
