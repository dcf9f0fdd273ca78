"""TODO domino_tune/runtime/lanes."""
