"""TODO domino_tune/store/formats."""
