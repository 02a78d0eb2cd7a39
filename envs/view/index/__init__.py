"""The router's own index of cached blocks, as messages from the instances and its decisions make it."""
