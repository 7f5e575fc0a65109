"""The user's sandbox classes, async and sync, and how a sandbox is opened."""
