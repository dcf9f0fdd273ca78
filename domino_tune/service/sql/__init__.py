"""SQL: the service's database, SQLite or PostgreSQL. May import store and below."""
