"""Who asks, and whether they may: checked before any handler runs (docs/security.md)."""
