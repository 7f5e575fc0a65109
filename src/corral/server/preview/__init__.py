"""Previews: ports of sandboxes over HTTP, each at an origin of its own."""
