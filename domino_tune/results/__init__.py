"""Results: what the verbs return, as JSON, tables and DataFrames. May import store and below.

One module a verb, imported by the commands that need it.
"""
