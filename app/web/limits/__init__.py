"""How often somebody may ask: requests, uploads, log-ins (docs/security.md)."""
