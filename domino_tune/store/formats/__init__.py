"""File formats of others and of ours: models, arguments and traces. May import the store."""
