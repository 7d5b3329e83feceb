#!/usr/bin/env bash
# Runs the tests of tests/faults and prints what each showed, as a table, and a verdict; run by `make faults`.
# The long form takes FAULTS_LONG=1.
set -euo pipefail

report=$(mktemp)
trap 'rm -f "$report"' EXIT
status=0
FAULTS_REPORT=$report go test -race -count=1 -timeout 90m ./tests/faults || status=$?

echo '| Test | Must show | Verdict | Figures |'
echo '|---|---|---|---|'
sort "$report"
if [[ $status == 0 ]]; then
	echo "verdict: $(wc -l <"$report") cases, all shown"
else
	echo "verdict: FAILED, see above"
fi
exit $status
