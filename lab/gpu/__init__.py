"""Programs for one GPU. May import probes, collect, machine and op_rows; runtime, store, base."""
