"""Profiles: the time of calls by op, problem and implementation, from torch's profiler, NVTX and Nsight Compute."""
