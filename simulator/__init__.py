"""Discrete-event model of sliced tensor-parallel training: specs in, timeline out.

Pure: no torch, no files, no network, no clock, no randomness.
"""
