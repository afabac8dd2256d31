"""Largest excess of float32 clipping, as the accounting charges it; derived in ``query/fixed_point.py``."""

#: Proved relative excess of a clipped vector's norm over C, and of the noise scale's rounding.
KAPPA = 2.0**-15
