#!/usr/bin/env bash
# Runs every fuzz target of the library and of the tool for FUZZTIME; run by `make fuzz`.
set -euo pipefail

for module in . cmd/redisdelay; do
	for package in $(go -C "$module" list ./...); do
		for target in $(go -C "$module" test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
			echo "$package $target"
			go -C "$module" test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package"
		done
	done
done
