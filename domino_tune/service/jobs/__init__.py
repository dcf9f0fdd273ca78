"""Jobs: submitted, leased, run and read. May import service.tasks, executors, sql and below."""
