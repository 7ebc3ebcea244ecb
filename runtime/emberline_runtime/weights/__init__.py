"""Reading weights from a model folder."""
