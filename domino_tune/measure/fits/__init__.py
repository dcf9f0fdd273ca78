"""Fits of laws and the bundled profiles. May import importers, op_rows, store and the simulator."""
