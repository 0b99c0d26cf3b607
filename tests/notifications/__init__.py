"""Receivers of news, through the public door and to real receivers."""
