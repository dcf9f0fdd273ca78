"""TODO domino_tune/cli."""
