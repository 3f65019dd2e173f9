"""Pairs in KernelBench's form: problems of our own, each with solutions and the verdict that each must get."""
