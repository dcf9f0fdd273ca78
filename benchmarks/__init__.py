"""Benchmarks: print as tables what the project must reach. Not shipped; may import everything."""
