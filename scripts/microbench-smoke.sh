#!/usr/bin/env bash
# Runs each Go benchmark of each module once, in its smallest form; run by `make microbench-smoke`. The
# packages are found by their benchmarks, so that a new one is run too.
set -euo pipefail

grep -rl --include='*_test.go' '^func Benchmark' . | xargs -n1 dirname | sort -u | while read -r dir; do
	go -C "$dir" test -short -vet=off -run '^$' -bench . -benchtime 1x -timeout 5m . </dev/null >"${TMPDIR:-/tmp}/bench.$$" 2>&1 || {
		cat "${TMPDIR:-/tmp}/bench.$$"
		rm -f "${TMPDIR:-/tmp}/bench.$$"
		echo "microbench-smoke: a benchmark in $dir fails" >&2
		exit 1
	}
	tail -n 1 "${TMPDIR:-/tmp}/bench.$$"
	rm -f "${TMPDIR:-/tmp}/bench.$$"
done
