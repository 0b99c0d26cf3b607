"""Projects, their members and tokens, and the people of the service: pages under /settings, and the same as an API."""
