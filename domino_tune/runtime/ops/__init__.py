"""TODO domino_tune/runtime/ops."""
