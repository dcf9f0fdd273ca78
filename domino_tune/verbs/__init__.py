"""START HERE. Verbs: one module a verb, request in, result out.

May import measure, report, results, runtime, search and below.
"""
