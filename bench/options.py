"""Options of the benchmarks. `--help` explains them and runs nothing."""

import argparse
import inspect


def parser(module_doc: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=inspect.cleandoc(module_doc or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )


def without_options(module_doc: str | None) -> None:
    """Parse the command line of a benchmark without options, which accepts only `--help`."""
    parser(module_doc).parse_args()


def count(text: str) -> int:
    """Parse a whole number of 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)
