"""AIBrix's gateway plugins."""
