"""Jobs: submitted, leased, run and read. May import service.work, executors, sql and below."""
