"""The HTTP service: the wire format only; the verbs are in domino_tune.verbs."""
