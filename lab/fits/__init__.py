"""Fits of laws and the bundled profiles.

May import importers, contention_law, op_rows, store and the simulator.
"""
