"""The options of `threewalls report --github` and `--gitlab`. Imports nothing that takes time."""

import argparse


def add_post_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on the change", "Post it, or bring up to date what an earlier run posted.")
    forge = group.add_mutually_exclusive_group()
    forge.add_argument("--github", dest="forge", action="store_const", const="github", help="a comment and a check")
    forge.add_argument("--gitlab", dest="forge", action="store_const", const="gitlab", help="a note and a status")
    group.add_argument("--repo", default="", metavar="OWNER/NAME", help="repository (default: that of the job)")
    group.add_argument(
        "--change", default=0, type=_number, metavar="N", help="pull or merge request (default: the job's)"
    )
    group.add_argument("--sha", default="", help="commit of the check (default: the head of the change)")
    group.add_argument("--key", default="", metavar="NAME", help="name of this comment and check (default: the stack)")
    group.add_argument("--forge-url", default="", metavar="URL", help="a forge of your own (default: that of the job)")
    group.add_argument(
        "--no-verdict", default="", metavar="WHY", help="instead of a RUN, when none could be uploaded: a neutral check"
    )
    group.add_argument("--no-comment", action="store_true", help="only the check")
    group.add_argument("--no-check", action="store_true", help="only the comment")
    parser.set_defaults(forge=None)


def _number(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError("a change has a number")
    return int(text)
