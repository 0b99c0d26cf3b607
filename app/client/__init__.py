"""`threewalls` for CI: upload, sync, report, runs, token, doctor. Independent of the server code (`docs/cli.md`)."""
