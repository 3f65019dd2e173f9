"""Calls in code that Inductor compiles: winners by plain torch are inlined, all others called without a look-up."""
