"""Faults put into simulator/ and domino_tune/search/: do their tests notice them?"""
