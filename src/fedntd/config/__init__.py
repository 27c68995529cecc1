"""The settings of a run: their schema, what their names stand for, TOML, presets, and building what they name."""
