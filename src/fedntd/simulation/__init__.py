"""Simulated federations: one, its rounds, and many runs together."""
