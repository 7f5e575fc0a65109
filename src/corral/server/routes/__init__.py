"""The routes, a module for each service of Daytona's API. Each has a table; `corral.server.tables` collects them."""
