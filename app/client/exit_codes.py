"""What the exit code of a client command says; that of a verdict comes from the service, by the same list."""

FINE = 0
USAGE = 2
SERVICE = 3
"""Nothing was uploaded, or no verdict came: the service could not be reached, refused, or took too long."""
