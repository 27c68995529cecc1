"""Engines: they train the clients of a cohort and test models, one by one or all in one compiled step."""
