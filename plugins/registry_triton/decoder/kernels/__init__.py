"""The kernels, each file alone: a fingerprint covers what a form imports."""
