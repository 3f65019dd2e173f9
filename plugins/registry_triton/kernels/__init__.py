"""The kernels: what runs on the GPU, without a word about when to run it."""
