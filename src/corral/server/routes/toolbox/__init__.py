"""The toolbox: routes for what is done inside one sandbox."""
