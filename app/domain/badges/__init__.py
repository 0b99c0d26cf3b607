"""Badges: two words about a stack as a small picture, and the key that lets a page elsewhere show it."""
