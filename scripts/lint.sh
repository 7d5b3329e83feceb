#!/usr/bin/env bash
# Checks every Go module of the repository, the documents, the workflows and the compose file; run by `make lint`.
set -euo pipefail

unformatted=$(gofmt -l .)
if [[ -n $unformatted ]]; then
	printf 'not formatted by gofmt:\n%s\n' "$unformatted" >&2
	exit 1
fi

# tidy: go mod tidy does not read go.work, so what that replaces is replaced in a copy of go.mod
tidy() {
	if [[ ! -e go.work ]]; then
		go mod tidy -diff
		return
	fi
	local dir
	dir=$(mktemp -d)
	cp go.mod "$dir"
	grep -v '^github.com/redisdelay/watermill-redisdelay' go.sum >"$dir/go.sum"
	go mod edit -replace github.com/redisdelay/watermill-redisdelay=../.. \
		-replace github.com/redisdelay/watermill-redisdelay/prometheus=../../prometheus "$dir/go.mod"
	local status=0
	GOWORK=off go mod tidy -diff -modfile="$dir/go.mod" || status=$?
	rm -rf "$dir"
	return $status
}

find . -name go.mod | sort | while read -r mod; do
	echo "lint: $(dirname "$mod")"
	cd "$(dirname "$mod")"
	# The files of `make stress` have this tag, and none has its opposite.
	go vet -tags stress ./...
	go run "$STATICCHECK" -tags stress ./...
	tidy
	cd - >/dev/null
done

# Prose, links, commands and paths of documents. make test and make test-ci run these tests too, and so does CI.
if [[ -z ${CI_LOGS:-} ]]; then
	echo 'lint: documents'
	go test -count=1 -run 'Documents|Comments' .
	go -C cmd/redisdelay test -count=1 -run Documents .
fi

echo 'lint: workflows'
go run "$ACTIONLINT" .github/workflows/*.yml
echo 'lint: compose.yaml'
(cd cmd/redisdelay/deploy && GOWORK=off go run "$COMPOSE" --no-interpolation compose.yaml >/dev/null)

# The library is for other systems and for 32 bits, too.
echo 'lint: linux/386 darwin/arm64 windows/amd64'
go -C scripts/typecheck test ./...
go -C scripts/typecheck run . -C "$PWD" linux/386 darwin/arm64 windows/amd64 -- ./...
