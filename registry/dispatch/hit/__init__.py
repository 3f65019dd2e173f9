"""The hit: the generated function that finds a plan by the arguments' shapes, and the guards in front of it."""
