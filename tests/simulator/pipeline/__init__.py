"""Tests of simulator.pipeline."""
