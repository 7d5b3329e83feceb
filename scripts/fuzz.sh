#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME; run by `make fuzz`.
set -euo pipefail

for package in $(go list ./...); do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "$package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package"
	done
done
