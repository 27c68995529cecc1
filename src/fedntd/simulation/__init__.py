"""Simulated federations: their setup, their rounds, and training several runs together."""
