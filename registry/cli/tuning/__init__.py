"""The command ``tune``: what it is asked for, its plan without measuring, and a run on this machine or a cluster."""
