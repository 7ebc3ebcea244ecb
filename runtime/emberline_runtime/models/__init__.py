"""Architectures: a HF config becomes a ModelSpec, one small file a family."""
