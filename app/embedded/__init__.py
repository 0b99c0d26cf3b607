"""The embedded mode: one command runs the web server, a worker and the schedule."""
