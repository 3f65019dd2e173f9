"""Faults that tell of the machine rather than of the code that met them."""
