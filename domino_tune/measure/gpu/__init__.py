"""TODO domino_tune/measure/gpu."""
