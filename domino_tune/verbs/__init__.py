"""START HERE. Verbs: one module a verb, request in, result out.

Modules resolve, landscape, ranks and report are shared by the verbs; calls has them for Python.
May import measure, report, results, runtime, search and below.
"""
