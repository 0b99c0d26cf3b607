"""create_app(): settings, routers, error pages; no logic."""
