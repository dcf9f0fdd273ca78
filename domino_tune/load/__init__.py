"""What the service takes, measured against a real one: ``scripts/load`` prints the tables."""
