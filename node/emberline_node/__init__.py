"""The node agent that will own the weights folder."""
