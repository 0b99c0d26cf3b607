"""Who may do what: roles of people, scopes of tokens, and the projects that follow from them (docs/security.md)."""
