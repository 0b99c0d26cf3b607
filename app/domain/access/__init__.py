"""Roles of users, scopes of tokens, and the projects in which they apply (docs/security.md)."""
