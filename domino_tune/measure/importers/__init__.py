"""Importers of others' tables: one dict, a name each."""
