"""One GPU: works that are repeated, their power and clock, and when a collective gets in."""
