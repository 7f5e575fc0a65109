"""The conformance suite for backends: see `corral.testing.conformance`."""
