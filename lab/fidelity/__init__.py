"""Fidelity: predictions against runs on emulated hosts. May import domino_tune and bench."""
