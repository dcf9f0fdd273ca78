"""Bundled machine profiles: data, one JSON file a machine, read through importlib.resources."""
