"""TODO domino_tune/runtime/launch."""
