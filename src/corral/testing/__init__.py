"""What a backend must keep, as checks that anybody can run. See `corral.testing.conformance`."""
