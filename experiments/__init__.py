"""Experiments that produced the shipped settings and the README's numbers."""
