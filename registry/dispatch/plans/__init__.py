"""Plans: bound, launch-ready candidates, and the prepared weights that they read."""
