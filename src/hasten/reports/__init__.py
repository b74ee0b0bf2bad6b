"""Show records: on the terminal, as an HTML page, as a trace and as a table."""
