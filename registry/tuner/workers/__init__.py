"""Workers: the process that holds the device, the pool that compiles, and the jobs sent to both."""
