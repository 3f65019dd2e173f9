"""Discovery: finds the installed plugins, loads them guarded, and lists their ops and implementations."""
