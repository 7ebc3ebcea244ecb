"""The engine loop: one thread that turns requests into steps and steps into tokens."""
