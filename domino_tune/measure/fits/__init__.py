"""TODO domino_tune/measure/fits."""
