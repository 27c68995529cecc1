"""Datasets, and who gets which of their samples."""
