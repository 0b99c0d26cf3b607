"""`threewalls` for CI: upload, sync, report, runs, token, doctor. Needs nothing of the server (`docs/cli.md`)."""
