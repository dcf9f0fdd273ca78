"""Benchmarks: each prints what the project must show, as tables. Not shipped; may import all."""
