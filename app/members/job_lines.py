"""The lines by which a job uploads with a new token: those of docs/ci.md, with this service's address and project."""

from dataclasses import dataclass

CURL = """\
branch=${BRANCH:-$(git symbolic-ref -q --short HEAD)} || { echo "HEAD is detached: set BRANCH" >&2; exit 3; }
meta=$(printf '{"project": "%s", "branch": "%s", "commit": "%s", "commit_time": "%s"}' "$THREEWALLS_PROJECT" \\
  "$branch" "$(git rev-parse HEAD)" "$(git show -s --format=%cI)")
curl -sS --fail-with-body --retry 5 --retry-connrefused -H "Authorization: Bearer $THREEWALLS_TOKEN" \\
  -H "Idempotency-Key: $JOB_ID" -F log=@train.log -F "meta=$meta" "$THREEWALLS_URL/api/v1/runs" > run.json \\
  || { cat run.json >&2; exit 3; }
run=$(grep -oE '"id": ?[0-9]+' run.json | head -n 1 | grep -oE '[0-9]+')
curl -sS --fail-with-body --retry 5 --retry-connrefused -H "Authorization: Bearer $THREEWALLS_TOKEN" \\
  "$THREEWALLS_URL/api/v1/runs/$run/report?wait=60" > report.json || { cat report.json >&2; exit 3; }
code=$(grep -oE '"exit_code": ?[0-9]' report.json | head -n 1 | grep -oE '[0-9]$') || true
exit "${code:-3}"
"""
"""Upload and verdict without the client. Kept equal to docs/ci.md by its test."""

INSTALL = "pip install 'threewalls @ git+https://git.example.org/tools/threewalls@COMMIT'"
BRANCHES = (
    ("GitHub Actions", '"${GITHUB_HEAD_REF:-$GITHUB_REF_NAME}"'),
    ("GitLab CI", '"$CI_COMMIT_REF_NAME"'),
    ("Jenkins", '"${CHANGE_BRANCH:-$BRANCH_NAME}"'),
    ("Buildkite", '"$BUILDKITE_BRANCH"'),
)
"""What `BRANCH` is in a job of each: CI systems check a commit out and no branch."""


@dataclass(frozen=True, slots=True)
class JobLines:
    client: str
    curl: str
    github: str
    gitlab: str
    branches: tuple[tuple[str, str], ...] = BRANCHES


def job_lines(url: str, project: str, states: str = "") -> JobLines:
    """`states`: what the client is told besides, as words of its command line."""
    upload = f"threewalls upload train.log{' ' + states if states else ''}"
    return JobLines(
        client=f"export THREEWALLS_URL={url}\n{upload} --wait --allow no-baseline,inconclusive",
        curl=f"THREEWALLS_URL={url}\nTHREEWALLS_PROJECT={project}\n{CURL}",
        github=f"""\
- run: |
    {INSTALL}
    {upload} --wait --allow no-baseline,inconclusive
  if: always()                       # a run that failed is worth a look, too
  env:
    THREEWALLS_URL: {url}
    THREEWALLS_TOKEN: ${{{{ secrets.THREEWALLS_TOKEN }}}}
""",
        gitlab=f"""\
perf:
  script:
    - ./train.sh > train.log 2>&1
  after_script:                            # runs after a failure, too; its exit code does not count
    - {INSTALL}
    - {upload}
  variables: {{THREEWALLS_URL: "{url}"}}   # THREEWALLS_TOKEN: a masked variable
""",
    )
