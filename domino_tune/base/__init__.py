"""TODO domino_tune/base."""
