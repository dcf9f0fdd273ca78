"""Measure a machine, predict the iteration time of every Domino cut, choose one, prove it."""

VERSION = "0.1.0"
