"""Runs on disk: records, the run folder and its checkpoint, the reader, the ledger."""
