"""The embedded mode: one command that is the web server, its worker and its clock."""
