"""Products with packed weights of 1, 2, 4 and 8 bits: one family of kernels for every op over one packing."""
