"""A fleet: a planner that queues problems as jobs, and workers that lease them and run the tuner on one device each."""
