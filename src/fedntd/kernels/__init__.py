"""Convolutions of many clients at once: the operator, its Triton kernels, and how they are cut into tiles."""
