"""Executors: where jobs run, on this machine or on Dask. May import service.work and base."""
