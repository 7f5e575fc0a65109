"""Backends: the makers of sandboxes, one folder each, found through `registry`."""
