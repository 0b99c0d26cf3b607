#!/usr/bin/env bash
# Plays a CI job, and what befalls it. Needs THREEWALLS_URL, THREEWALLS_TOKEN, `threewalls` in PATH, and:
#   LOGS      a folder with main-1.log ... main-12.log, slow.log and long.log
#   FORGE     address of a server that speaks GitHub's API
#   OUTAGE    a command that ends the service with kill -9;  BACK  one that starts it again
set -euo pipefail
export THREEWALLS_SPOOL=$PWD/spool

expect() { # expect CODE WHAT COMMAND...
  local wanted=$1 what=$2 code=0
  shift 2
  "$@" || code=$?
  [[ $code == "$wanted" ]] || { echo "!! $what: exit code $code, wanted $wanted" >&2; exit 1; }
  echo "== $what: exit code $code" >&2
}

contract=(--set gpu=H100 --set gpus=16 --set cluster=west --set container=train:2026.10 --set model=mixtral)
job() { # job NUMBER BRANCH COMMAND...: as the runner of a CI system sets the environment of a job
  local number=$1 branch=$2
  shift 2
  env GITLAB_CI=true CI_SERVER_HOST=ci.example.org CI_JOB_ID="$number" CI_JOB_NAME=perf CI_PIPELINE_IID="$number" \
    CI_COMMIT_SHA="$(printf '%08x' "$number")" CI_COMMIT_BRANCH="$branch" CI_JOB_URL="https://ci.example.org/$number" \
    CI_COMMIT_TIMESTAMP="2026-11-01T$(printf '%02d' "$number"):00:00+00:00" "$@"
}

expect 0 "doctor" threewalls doctor "$LOGS/main-1.log"
expect 4 "the first run of a stack" job 1 main threewalls upload "$LOGS/main-1.log" "${contract[@]}" --wait
for number in {2..12}; do
  job "$number" main threewalls upload "$LOGS/main-$number.log" "${contract[@]}"
done
expect 0 "a change that costs nothing" \
  job 13 faster threewalls upload "$LOGS/main-3.log" "${contract[@]}" --set commit=feed0001 --wait --json > fine.json
expect 1 "a change that is slower" job 14 slower threewalls upload "$LOGS/slow.log" "${contract[@]}" --wait --json > slow.json
number_of() { grep -oE '"id": [0-9]+' "$1" | head -n 1 | grep -oE '[0-9]+'; }
on_the_change() { # on_the_change RUN: as a job of GitHub Actions; two pushes to one pull request
  GITHUB_TOKEN=ghs_of-the-job threewalls report "$1" --github --forge-url "$FORGE" --repo moe/training --change 12 \
    --sha "$(printf '5f3a%.0s' {1..10})"
}
fine=$(number_of fine.json) run=$(number_of slow.json)
expect 0 "the first push on its pull request" on_the_change "$fine"
expect 1 "the second one" on_the_change "$run"
expect 1 "its report" threewalls report "$run" --markdown > comment.md
grep -q 'regression' comment.md
expect 2 "a wrong field" threewalls upload "$LOGS/slow.log" --set gpus=many
expect 3 "a wrong token" env THREEWALLS_TOKEN=tw_0000000000000000000000000000000000000000000 threewalls token

# The service goes away while a long log is on its way; the job keeps it.
job 15 main threewalls upload "$LOGS/long.log" "${contract[@]}" --retries 0 & upload=$!
eval "$OUTAGE"
code=0; wait "$upload" || code=$?
echo "== the long upload: exit code $code"
expect 3 "without a service" job 16 main threewalls upload "$LOGS/main-1.log" "${contract[@]}" --retries 0
expect 0 "without a service, which is fine" \
  job 17 main threewalls upload "$LOGS/main-2.log" "${contract[@]}" --retries 0 --spool-ok
expect 3 "sync without a service" threewalls sync --retries 0
[[ $(threewalls sync --list | grep -c bytes) -ge 2 ]]

# It comes back, and syncs are killed at any moment; two of the rest run at once.
eval "$BACK"
for moment in 0.25 0.35 0.45; do
  threewalls sync > /dev/null 2>&1 & sync=$!
  sleep "$moment"
  kill -9 "$sync" 2> /dev/null || true
  wait "$sync" 2> /dev/null || true
done
threewalls sync & one=$!
expect 0 "sync" threewalls sync
expect 0 "the sync beside it" wait "$one"
expect 0 "nothing is left" threewalls sync
[[ -z $(ls -A spool) ]]

# What was sent is there already, whoever sends it again.
job 15 main threewalls upload "$LOGS/long.log" "${contract[@]}" | grep 'already uploaded'
job 16 main threewalls upload "$LOGS/main-1.log" "${contract[@]}" | grep 'already uploaded'
job 17 main threewalls upload "$LOGS/main-2.log" "${contract[@]}" --json | grep '"created": false'
threewalls upload - "${contract[@]}" --name piped < "$LOGS/main-1.log"
! grep -rq "$THREEWALLS_TOKEN" spool slow.json comment.md
echo "== done"
