"""Convolutions of many clients at once: the operator, its Triton kernels, and how they are cut into tiles."""

from fedntd.support.moved import names_of

__getattr__ = names_of(__name__, "convolution")
