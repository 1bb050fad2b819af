"""The result of a sweep: rows, tables, reading a store."""
