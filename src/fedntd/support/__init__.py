"""Helpers that have nothing to do with federated learning: files, interrupts, the environment, wording."""
