"""Fidelity: the whole loop on the two-host testbed, predictions held against real runs."""
