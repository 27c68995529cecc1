"""The settings of a run: their schema, what their names stand for, TOML, presets, and building what they name."""

from fedntd.support.moved import names_of

__getattr__ = names_of(__name__, "schema", {"Federation": "FederationSettings", "Auxiliary": "AuxiliarySettings"})
