"""Whole commands on very many trials, problems and configurations, on a very slow kernel and on a workspace of 4 GB."""
