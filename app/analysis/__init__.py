"""Analysis and comparison of local logs, without a server: the commands `analyze` and `compare`. `docs/cli.md`."""
