"""TODO domino_tune/service/sql."""
