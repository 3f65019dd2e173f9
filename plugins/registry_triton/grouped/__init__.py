"""Products of rows that are grouped by expert: no form reads the offsets on the host."""
