"""Pages that commands write: the file, and facts that no database holds."""
