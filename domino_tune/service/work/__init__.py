"""The work of the service: what each kind of job computes. May import verbs and below."""
