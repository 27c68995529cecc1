"""Runs on disk: records, the run folder and its checkpoint, the reader, the ledger."""

from fedntd.support.moved import names_of

__getattr__ = names_of(__name__, "reader")
