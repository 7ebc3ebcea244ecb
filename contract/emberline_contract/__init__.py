"""What Emberline's processes agree on: resource models, engine configuration, names, metrics, HTTP paths and states.

Imports pydantic and the standard library, nothing else; every other package may import this one and none may import another.
"""
