"""Whole commands on very many trials, problems and configurations, and on a very slow kernel."""
