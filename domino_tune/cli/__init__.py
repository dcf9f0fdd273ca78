"""Command line: parser made from the requests, actions, printing, progress.

May import everything below.
"""
