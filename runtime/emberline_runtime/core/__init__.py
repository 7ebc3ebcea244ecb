"""The pure part of the engine: what runs in a step, and what came of it. Knows no torch, no numpy, no HTTP."""
