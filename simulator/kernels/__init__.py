"""Compiled loops over integer arrays, and the arrays that they take."""
