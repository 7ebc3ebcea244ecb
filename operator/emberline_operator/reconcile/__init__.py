"""The queue of endpoints to look at, and the pass that looks at one."""
