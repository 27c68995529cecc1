"""The settings of a run: schema, registry of names, TOML, presets, and building what a config names."""

from fedntd.support.moved import names_of

__getattr__ = names_of(__name__, "schema", {"Federation": "FederationSettings", "Auxiliary": "AuxiliarySettings"})
