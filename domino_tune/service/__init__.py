"""TODO domino_tune/service."""
