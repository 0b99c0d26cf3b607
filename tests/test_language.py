"""Texts for users and developers use plain words, one term per concept, and short leads. Read from the files."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    [
        *(path for folder in ("app", "workers", "templates", "docs") for path in (ROOT / folder).rglob("*")),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", ".env.example")),
    ]
)
TEXTS = {".py", ".html", ".md", ".yaml", ".yml", ".toml", ".example"}
FOREIGN = {"app/domain/access/common_passwords.toml", "CHANGELOG.md"}
"""Not our words, or words about earlier versions."""

MOST_WORDS_OF_A_LEAD = 16

BANNED = {
    # No actor, or a private image: name the user, the value or the action.
    r"\b(whoever|somebody|anybody|no one|nobody's)\b": "any user; users who ...; unassigned",
    r"\bnobody (has|knows|says|stated|states|can|may|will|is|was|asks?|sees?|reads?|foresaw)\b": "no user ...; unknown",
    r"\b(is|are|was|were|be|gets?) told\b": "receives; is shown",
    r"\b(says?|said|speaks?) of (it|this|that|the|a|an|them)\b": "states about",
    r"\bmay be said\b": "the result",
    r"\bended badly\b": "failed",
    r"\bstands? (in (for|place)|beside|there|where|here|open)\b": "replaces; is next to; is shown",
    r"\bbeside (it|them|this|that|the|its|their|each|those|what)\b": "next to; in addition to",
    r"\b(is|are|was) held against\b": "is compared with",
    r"\bwhat there is\b": "the existing ...",
    r"\bthat is none\b": "an unknown ...",
    r"\b(is|are) no longer good\b": "is stale",
    r"\bin spite of\b": "despite",
    r"\bof which (it|the|one|some|each|not)\b": "whose; where",
    r"\bto which (it|the) belongs?\b": "its ...",
    r"\b(ring|rings|rang|rung) for\b": "enqueue",
    r"\b(doorbell|duel of|reign of)\b": "enqueue; pairwise comparison; leadership period",
    r"\b(tells|told) apart\b": "distinguishes",
    r"\b(anew|wherein|whereof|thereof|therein|hitherto|whilst|amongst|herewith|besides what)\b": "plain English",
    r"\bwhat [a-z ]{1,40} says? of\b": "the content of",
    r"\bthere is no such\b": "... does not exist",
    r"\b(is|are) no (contract field|number|trace|page|run|list|text|rule|fact|json)\b": "is not a ...",
    r"\b(is|are) to (capture|be captured)\b": "the scope is; captures",
    r"\b(is|was) that of (a|the|this|no)\b": "belongs to; matches; equals",
    r"\bdo(es)? not divide (by|into|over|evenly)\b": "is not divisible by",
    r"\bexcludes? each other\b": "are mutually exclusive",
    r"\btrainer takes\b": "trainer uses",
    r"\b(was|were) shown to run\b": "has run",
    r"\bno (run|user|log|page|row|key|value)s? [a-z ]{1,30} any more\b": "no longer",
    r"\bany more\b(?! (than|than one|of))": "no longer",
    r"\bwrite the layout out\b": "write an explicit layout",
    # Terms of docs/glossary.md and of the field, one spelling each.
    r"\bpeaks of (every|each|all) ranks?\b": "per-rank peak memory",
    r"\bdumps? of arguments\b": "argument dump",
    r"\bswitch(es|ed)? (it|them|the [a-z]+( [a-z]+)?) (on|off)\b": "turn on, turn off, enable",
    r"\banother workload\b": "a different workload",
    r"\b(have|has|of) (a|an) [a-z/]+ of (its|their) own\b": "a separate ...; its own ...",
    r"\bslow-downs?\b": "slowdown",
    r"\bre-runs?\b": "rerun",
    r"\btime-outs?\b": "timeout",
    r"\btime stamps?\b": "timestamp",
    r"\bper cent\b": "percent, or %",
    r"\bfor instance\b": "for example",
    r"\b(user|users|a|an|the|your|their) accounts?\b(?! of the (service|machine))": "user, profile",
    r"\b(runs|steps|hours|GPUs) a (side|step|rank|GPU|run)\b": "per ...",
    r"\bpublished figure beside\b": "next to",
}


@cache
def texts() -> dict[str, str]:
    """Return the text of every file in plain reach of a reader, by its path."""
    names = {path.relative_to(ROOT).as_posix(): path for path in FILES if path.suffix in TEXTS and path.is_file()}
    return {name: path.read_text() for name, path in names.items() if name not in FOREIGN}


def findings(patterns: dict[str, str]) -> Iterator[str]:
    """Yield each match with its location and what to write instead. Line breaks and comment signs count as spaces."""
    phrases = {re.compile(pattern): instead for pattern, instead in patterns.items()}
    anything = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for name, text in texts().items():
        lines = text.lower().split("\n")
        flat = " ".join(line.strip().removeprefix("# ") for line in lines)
        if not anything.search(flat):
            continue
        starts = list(accumulate((len(line.strip().removeprefix("# ")) + 1 for line in lines), initial=0))
        for phrase, instead in phrases.items():
            for match in phrase.finditer(flat):
                yield f"{name}:{bisect_right(starts, match.start())}: {match.group()!r}, write: {instead}"


def test_no_text_uses_a_banned_phrase() -> None:
    wrong = list(findings(BANNED))
    assert not wrong, "\n".join(wrong)


NAME_OF_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
ODD_NAME = re.compile(
    r"_(said|told|nobody|somebody|whoever|anew|of_which|ones_own|in_spite_of|held_against)(_|$)"
    r"|_(what_was_typed|that_is_away|taken_for|stands_in|where_one_stands|no_other|holds_up)(_|$)"
    r"|(?<!there)_(is|are)_no_(?!longer|better|more|finer)"
)


def test_names_of_tests_are_plain_sentences() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in NAME_OF_TEST.findall(path.read_text())
        if ODD_NAME.search(name)
    ]
    assert not wrong, "\n".join(wrong)


LEAD = re.compile(r'<p class="answer">(.*?)</p>', re.DOTALL)
TAG = re.compile(r"<[^>]*>|\{#.*?#\}|\{\{.*?\}\}", re.DOTALL)


def test_the_lead_of_a_page_is_short() -> None:
    """Check each branch of a lead; printed values do not count."""
    wrong = [
        f"{name}: {' '.join(part.split())}"
        for name, text in texts().items()
        for lead in LEAD.findall(text)
        for part in re.split(r"\{%.*?%\}", TAG.sub(" ", lead), flags=re.DOTALL)
        if len(re.findall(r"[\w'-]+", part)) > MOST_WORDS_OF_A_LEAD
    ]
    assert not wrong, "\n".join(wrong)


HEADING = re.compile(r"<(h[1-4]|th|summary|button|label)\b[^>]*>(.*?)</\1>|^#+ ([^\n]*)$", re.DOTALL | re.MULTILINE)
NAMES = {"Actions", "Engine", "Markdown", "Perfetto", "Teams", "You", "The"}
"""Names of other products, and words that begin a second sentence."""


def test_headings_and_labels_are_in_sentence_case() -> None:
    wrong = []
    for name, text in texts().items():
        if not name.endswith((".html", ".md")):
            continue
        for match in HEADING.finditer(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
            plain = re.sub(r"\{%.*?%\}", " ", TAG.sub(" ", match[2] or match[3] or ""), flags=re.DOTALL)
            words = re.findall(r"[A-Za-z][\w'/-]*", re.sub(r"`[^`]*`|\[|\]\([^)]*\)", " ", plain))
            wrong += [
                f"{name}: {' '.join(words)}"
                for word in words[1:]
                if len(word) > 1 and word.istitle() and word not in NAMES
            ]
    assert not wrong, "\n".join(wrong)


def test_shown_differences_have_a_typographic_minus() -> None:
    """A format with a sign writes a hyphen; `signed`, `with_sign` and words write what people read."""
    with_hyphen = re.compile(r"(:|%)\+,?(\.\d+)?[fg%e]")
    wrong = [
        f"{name}:{number}"
        for name, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if with_hyphen.search(line) and '"−"' not in line
    ]
    assert wrong == []
