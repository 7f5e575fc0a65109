"""What the report and the live page share: foreign text made harmless to the eye, artifacts as they may be shown."""
