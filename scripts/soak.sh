#!/usr/bin/env bash
# Has random things fail for SOAK, and prints what came of it, round by round; run by `make soak`.
set -euo pipefail

# What go-redis logs of each connection that fails would fill the screen.
go test -count=1 -timeout 0 -v -run '^TestSoak$' ./tests/faults 2>&1 | grep --line-buffered -v '^redis: '
