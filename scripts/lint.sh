#!/usr/bin/env bash
# Checks every Go module of the repository; run by `make lint`.
set -euo pipefail

unformatted=$(gofmt -l .)
if [[ -n $unformatted ]]; then
	printf 'not formatted by gofmt:\n%s\n' "$unformatted" >&2
	exit 1
fi

find . -name go.mod -not -path './.tools/*' | sort | while read -r mod; do
	echo "lint: $(dirname "$mod")"
	cd "$(dirname "$mod")"
	for tags in '' stress; do # with and without the files of `make stress`
		go vet -tags "$tags" ./...
		go run "$STATICCHECK" -tags "$tags" ./...
	done
	go mod tidy -diff
	cd - >/dev/null
done
