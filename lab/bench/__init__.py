"""Benchmarks of the simulator: a number beside what measured it. May import everything."""
