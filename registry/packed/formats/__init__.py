"""Conversions of other libraries' packed tensors to a PackedWeight. These libraries are not imported."""
