"""Measuring: probes on ranks, laws fitted to them, importers. May import runtime, results, search,
store and the packages below."""
