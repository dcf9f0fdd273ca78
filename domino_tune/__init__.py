"""Measure a machine, predict the iteration time of every plan, choose one, validate it."""

VERSION = "0.1.0"
