"""Slow, literal transcriptions of the equations, in NumPy: what the package is tested against."""
