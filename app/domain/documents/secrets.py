"""Recognises what must never be kept: variables and flags that carry credentials, and values that look like one."""

import re

_NAME = re.compile(
    r"TOKEN(?!S|IZER)|SECRET|PASSW|CREDENTIAL|AUTHORIZATION|COOKIE|(^|_)(KEY|PWD|PAT|AUTH)(_|$)|APIKEY|ACCESS_?KEY"
    r"|PRIVATE_?KEY|WANDB_KEY",
    re.IGNORECASE,
)
"""`TOKEN` but not `NUM_OF_TOKENS...` or `TOKENIZERS_PARALLELISM`, which are settings."""
_VALUE = re.compile(r"^(hf_|ghp_|gho_|github_pat_|glpat-|nvapi-|sk-|xox[abp]-|AKIA|eyJ)[\w.-]{8,}|-----BEGIN ")
_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def is_secret(name: str, value: str) -> bool:
    """True when a variable or flag must not be stored."""
    return bool(_NAME.search(name.replace("-", "_")) or _VALUE.search(value.strip()) or _IN_URL.search(value))
