"""Sweeps: read a sweep file, train its runs in groups, and show their progress."""
