"""What computes a step: a small protocol, a registry, and the implementations."""
