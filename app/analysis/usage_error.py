"""A command line that means nothing."""

from app.errors import ThreewallsError


class UsageError(ThreewallsError):
    """Options or files that contradict each other; the detail says what to write instead."""

    title = "This command line cannot be understood"
