"""The published tests of others, run against the registry's ops: PyTorch's OpInfo, Liger, FlagGems, transformers."""
