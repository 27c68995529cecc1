"""What every room may use and nothing of which knows federated learning: files, interrupts, the environment."""
