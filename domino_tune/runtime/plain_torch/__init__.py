"""TODO domino_tune/runtime/plain_torch."""
