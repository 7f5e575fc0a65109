"""The routes, a module per service of the wire. Each has a table; `corral.server.app` collects them."""
