"""Convolutions of many clients at once: the operators, their Triton kernels, and the tile sizes."""

from fedntd.support.moved import names_of

__getattr__ = names_of(__name__, "convolution")
