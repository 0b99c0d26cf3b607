"""Log-in, log-out, one's own password; the first administrator from the command line."""
