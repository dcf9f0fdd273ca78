"""Service: jobs, their database, workers and tokens. May import verbs and below."""
