"""The server: Daytona's wire protocol in front of a backend. Needs the extra `server`."""
