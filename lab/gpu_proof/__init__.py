"""GPU proof: predictions against one real GPU. May import domino_tune, bench and fidelity."""
