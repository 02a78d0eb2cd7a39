"""The router's index of cached blocks: what messages from instances and its own decisions say."""
