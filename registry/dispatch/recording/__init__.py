"""Recording: counts the problems that a program calls and writes them as a shapes file."""
