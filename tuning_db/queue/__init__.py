"""The work queue of a fleet: plans, jobs that workers lease, the workers themselves, and calibrations of devices.

PostgreSQL serves many machines, SQLite one machine, by the same interface. Every instant is read from the clock of the
database, in seconds since 1970: a worker's own clock may be wrong.
"""
