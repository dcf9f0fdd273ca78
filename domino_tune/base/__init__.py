"""Base: errors, tables, units, medians, progress. May import the simulator only."""
