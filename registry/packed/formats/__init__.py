"""Other libraries' packed tensors as the parts of a PackedWeight. Nothing of theirs is imported."""
