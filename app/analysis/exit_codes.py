"""What the command line's exit code says; those of a verdict are in `app/domain/report/exit_codes.py`.

They are a promise: additions are welcome, changes are not.
"""

FINE = 0
USAGE = 2
UNREAD = 6
"""No reader knows the log; a job of an unknown trainer has not failed."""
UNREADABLE = 3
"""Upload or service: what was to be read, or reached, could not be. Of a comparison: the run itself failed."""
