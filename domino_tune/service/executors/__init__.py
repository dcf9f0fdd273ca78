"""Executors: where quanta run, on this machine or on Dask. May import service.tasks and base."""
