#!/usr/bin/env bash
# Runs the long form of tests/faults, and prints what each test showed, as a table, and a verdict. If all is well the
# table also goes into tests/faults/results.md. Run by `make faults`.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
export FAULTS_LONG=1 FAULTS_REPORT=$work/rows
go test -race -count=1 -parallel 3 -timeout 90m -skip 'TestOrderOfKeysOverPartitions' ./tests/faults || status=$?
# The long history of ten thousand keys needs more memory and time than the race detector leaves. It has that in the short form.
go test -count=1 -timeout 30m -run 'TestOrderOfKeysOverPartitions' ./tests/faults || status=$?

{
	echo '| Test | Must show | Verdict | Figures |'
	echo '|---|---|---|---|'
	# What all cases of one test must show is said once.
	sort "$work/rows" | awk -F' \\| ' 'BEGIN { OFS = " | " } { same = $2; if (same == last) $2 = "the same"; last = same; print }'
} >"$work/table"
cat "$work/table"
echo
if [[ $status != 0 ]]; then
	echo 'verdict: FAILED, see above'
	exit $status
fi
awk -v table="$work/table" '
	/^<!-- faults:end -->/ { inside = 0 }
	!inside { print }
	/^<!-- faults:begin -->/ { inside = 1; while ((getline line <table) > 0) print line }
' tests/faults/results.md >"$work/document"
cat "$work/document" >tests/faults/results.md
echo "verdict: $(wc -l <"$work/rows") cases, all shown; written to tests/faults/results.md"
