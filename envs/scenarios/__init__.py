"""Named scenarios (TOML), their schema and registry."""
