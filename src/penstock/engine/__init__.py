"""The engine: what is done with a batch of changes and with a seed, over the contracts alone."""
