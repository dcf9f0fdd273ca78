"""The HTTP service: wire only, every verb lives in domino_tune.verbs."""
