"""TODO domino_tune/verbs."""
