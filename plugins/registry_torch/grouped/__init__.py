"""Products of rows that are grouped by expert, by torch's own operators."""
