"""The host's side of the agent that runs inside (`corral.inside.agent`), over any stream of bytes."""
