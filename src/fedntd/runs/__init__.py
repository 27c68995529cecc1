"""Runs on disk: the run folder with its records and checkpoint, the reader, and the ledger."""

from fedntd.support.moved import names_of

__getattr__ = names_of(__name__, "reader")
