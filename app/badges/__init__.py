"""Badges of a stack for pages elsewhere: `/badges/{stack}/verdict.svg` and `/badges/{stack}/step-time.svg`."""
