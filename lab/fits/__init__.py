"""Fits of laws, one module each, and the bundled profiles: one description a GPU."""
