"""Compile the kernels now, so that no later start has to: ``python -m simulator.kernels``."""

from __future__ import annotations

from simulator.kernels.load import kernels_folder, prepare

if __name__ == "__main__":
    prepare()
    print(f"The simulator's loops are compiled: {kernels_folder()}")
