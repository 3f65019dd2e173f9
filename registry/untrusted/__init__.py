"""What others wrote: files that are read within bounds, texts that a terminal may have."""
