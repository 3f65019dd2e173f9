"""The side of PyTorch: operators, gradients, capture and tracing, and the one module that uses torch's private API."""
