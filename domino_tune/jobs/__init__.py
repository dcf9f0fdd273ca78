"""Jobs of the service: kept in SQL, claimed by lease, done slice by slice."""
