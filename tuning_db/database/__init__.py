"""Reaching a database: where it is, what its file and SQLite need, what its faults mean, answers within seconds."""
