"""What the numbers of the README come from."""
