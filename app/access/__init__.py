"""Access: credentials, the check before every request, users, members, tokens and the audit."""
