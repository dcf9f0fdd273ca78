"""Tasks: what jobs compute, in quanta, without a database. May import verbs and below."""
