"""Plain modules that tests share. No mocks: where a test needs a lighter form of ours, the package ships the fake."""
