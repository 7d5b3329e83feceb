#!/usr/bin/env bash
# Runs the long form of tests/faults, and prints what each test showed, as a table, and a verdict. If all is well the
# table also goes into tests/faults/results.md. With FAULTS, a regular expression, it runs those tests, and replaces their
# rows only. Run by `make faults`.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=tests/faults/results.md
status=0
export LC_ALL=C FAULTS_LONG=1 FAULTS_REPORT=$work/rows
keys=TestOrderOfKeysOverPartitions
only=${FAULTS:-.}
: >"$work/rows"
go test -race -count=1 -parallel 3 -timeout 90m -run "$only" -skip "$keys" ./tests/faults || status=$?
# The long history of ten thousand keys needs more memory and time than the race detector leaves. It has that in the short form.
if [[ $keys =~ $only ]]; then
	go test -count=1 -timeout 30m -run "$keys" ./tests/faults || status=$?
fi
ran=$(wc -l <"$work/rows")
if [[ $ran == 0 && $status == 0 ]]; then
	echo "verdict: FAILED, no test has the name $only"
	exit 1
fi

if [[ $only != . ]]; then
	# The other rows of the table stay, a row for each case. What "the same" stands for is in the row above.
	awk -F' \\| ' 'BEGIN { OFS = " | " }
		NR == FNR { split($1, name, "`"); ran[name[2]] = 1; next }
		/^<!-- faults:end -->/ { exit }
		/^\| `/ { if ($2 == "the same") $2 = last; last = $2; split($1, name, "`"); if (!(name[2] in ran)) print }
	' "$work/rows" "$results" >"$work/others"
	cat "$work/others" >>"$work/rows"
fi
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
' "$results" >"$work/document"
cat "$work/document" >"$results"
echo "verdict: $ran cases, all shown; written to $results"
