"""Measuring: probes on ranks, one GPU's programs, fits of bundled profiles, importers. May import
runtime, results, search, store and the packages below."""
