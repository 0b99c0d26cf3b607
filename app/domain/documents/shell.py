"""Fills a launch script's own variables and arrays into its commands, without executing anything.

Conditions and loops are not followed: of several assignments the last one counts. Values that a script takes from
programs or the environment stay as written. `bashlex` is not used: it rejects arrays and arithmetic, which
launch scripts use.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MAX_VALUE = 20_000
"""Characters of a variable; a script that doubles one in a loop of assignments stops growing here."""
_ASSIGNMENT = re.compile(
    r"\s*(?:(?:export|local|readonly|typeset|declare)\s+(?:-\w+\s+)*)?(?P<name>[A-Za-z_]\w*)(?P<add>\+?)=(?P<value>.*)",
    re.DOTALL,
)
_PLAIN = re.compile(r"(?:export\s+)?[A-Za-z_]\w*=(?:\"[^\"\n]*\"|'[^'\n]*'|(?:\$\(\(?[^()\n]*\)\)?|[^\s;\"'()])*)")
_SEVERAL = re.compile(rf"\s*(?:{_PLAIN.pattern}\s*;\s*)+(?:{_PLAIN.pattern})?\s*(?:#.*)?")
"""`TP=2; EP=8`: a line with only assignments."""
_ARRAY = re.compile(r"[\"']?\$\{(?P<name>[A-Za-z_]\w*)\[[@*]\]\}[\"']?")
_VARIABLE = re.compile(
    r"\$\{(?P<braced>[A-Za-z_]\w*)(?:(?P<operator>:?[-=])(?P<default>[^{}]*))?\}|\$(?P<plain>[A-Za-z_]\w*)"
)
_ARITHMETIC = re.compile(r"\$\(\(\s*(?P<terms>[\d\s*/+()-]{1,100})\s*\)\)")
_NAME_IN_ARITHMETIC = re.compile(r"(\$\(\()([^()]*)(\)\))")
_SBATCH = re.compile(r"#SBATCH\s+(?P<flag>--?[\w-]+)[=\s]\s*(?P<value>\S+)")
_SLURM = {
    **dict.fromkeys(("--nodes", "-N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    **dict.fromkeys(("--ntasks", "-n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


@dataclass(slots=True)
class _Script:
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)


def expand(text: str) -> str:
    """Return the commands of a script with its variables filled in; assignments stay, because they set variables.

    They follow those that Slurm sets by the script's `#SBATCH` lines.
    """
    script = _Script()
    for flag, value in _SBATCH.findall(text):
        script.variables |= dict.fromkeys(_SLURM.get(flag, ()), value.rpartition(":")[2])
    allocation = [f"export {name}={shlex.quote(value)}" for name, value in script.variables.items()]
    return "\n".join([*allocation, *(line for statement in _statements(text) if (line := _read(script, statement)))])


def _statements(text: str) -> Iterator[str]:
    """Logical lines: continued ones joined, arrays over several lines as one, comments left out."""
    lines = iter(re.sub(r"\\\r?\n", " ", text).splitlines())
    for line in lines:
        if line.lstrip().startswith("#"):
            continue
        whole = line
        assigned = _ASSIGNMENT.match(line)
        if assigned and assigned["value"].lstrip().startswith("("):
            while ")" not in _without_comment(whole) and (more := next(lines, None)) is not None:
                whole += f"\n{more}"
            yield whole
            continue
        assignments = _SEVERAL.fullmatch(line)
        yield from _PLAIN.findall(line) if assignments else [line]


def _without_comment(text: str) -> str:
    return "\n".join(re.sub(r"(^|\s)#.*$", "", line) for line in text.splitlines())


def _read(script: _Script, statement: str) -> str:
    assigned = _ASSIGNMENT.match(statement)
    if assigned is None or _is_prefix(assigned["value"]):
        return _filled(script, statement)
    name, value = assigned["name"], assigned["value"].strip()
    if value.startswith("("):
        inner = _without_comment(value)[1:].rpartition(")")[0]
        words = _words(_filled(script, " ".join(inner.split())))
        script.arrays[name] = [*script.arrays.get(name, []), *words] if assigned["add"] else words
        return ""
    plain = value if value.startswith("'") else _filled(script, value)
    plain = plain[1:-1] if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "\"'" else plain
    before = script.variables.get(name, "") if assigned["add"] else ""
    script.variables[name] = f"{before}{plain}"[:MAX_VALUE]
    return f"export {name}={shlex.quote(script.variables[name])}"


def _is_prefix(value: str) -> bool:
    """`NAME=value command`: the variable of one command, not an assignment."""
    words = _words(value)
    return len(words) > 1 and not value.lstrip().startswith(("(", '"', "'", "$("))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unmatched quote
        return text.split()


def _filled(script: _Script, text: str) -> str:
    text = _ARRAY.sub(lambda match: _array(script, match), text)
    for _ in range(3):  # a default may name another variable
        text = _NAME_IN_ARITHMETIC.sub(lambda match: match[1] + _named(script, match[2]) + match[3], text)
        replaced = _outside_single_quotes(text, lambda part: _VARIABLE.sub(lambda m: _value(script, m), part))
        replaced = _ARITHMETIC.sub(_result, replaced)
        if replaced == text:
            break
        text = replaced[:MAX_VALUE]
    return text


def _array(script: _Script, match: re.Match[str]) -> str:
    words = script.arrays.get(match["name"])
    if words is None:
        value = script.variables.get(match["name"])
        return match[0] if value is None else value
    return shlex.join(words)


def _value(script: _Script, match: re.Match[str]) -> str:
    name = match["braced"] or match["plain"]
    if name in script.arrays:
        return shlex.join(script.arrays[name])
    value = script.variables.get(name)
    if value is None or (not value and (match["operator"] or "").startswith(":")):
        return match["default"] if match["operator"] else match[0] if value is None else ""
    return value


def _named(script: _Script, terms: str) -> str:
    """Names in arithmetic need no dollar sign."""
    return re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda match: script.variables.get(match[0], match[0]), terms)


def _result(match: re.Match[str]) -> str:
    """Products, quotients, sums and differences of whole numbers, from left to right as they bind; else as written."""
    terms = match["terms"]
    for operators in ("*/", "+-"):
        pattern = re.compile(rf"(?<![\d)])(\d+)\s*([{re.escape(operators)}])\s*(\d+)(?!\d)")
        while operation := pattern.search(terms):
            result = _computed(int(operation[1]), operation[2], int(operation[3]))
            if result is None:
                return match[0]
            terms = f"{terms[: operation.start()]}{result}{terms[operation.end() :]}"
    return terms.strip() if terms.strip().isdigit() else match[0]


def _computed(a: int, operator: str, b: int) -> int | None:
    if operator == "/":
        return a // b if b else None
    return {"*": a * b, "+": a + b, "-": a - b}[operator]


def _outside_single_quotes(text: str, change: Callable[[str], str]) -> str:
    parts = re.split(r"('[^']*')", text)
    return "".join(
        part if part.startswith("'") and part.endswith("'") and len(part) > 1 else change(part) for part in parts
    )
