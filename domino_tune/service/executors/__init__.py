"""TODO domino_tune/service/executors."""
