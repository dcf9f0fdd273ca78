"""Ops: the tensor functions of a schedule's ops. May import lanes.kernels and parameters."""
