#!/usr/bin/env bash
# Checks every Go module of the repository, and the documents; run by `make lint`.
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
	go vet ./...
	go run "$STATICCHECK" ./...
	# The files of `make stress` have a tag. Few packages have such files.
	{ grep -rl --include='*.go' '^//go:build stress$' . || true; } | xargs -r -n1 dirname | sort -u | while read -r package; do
		go vet -tags stress "$package"
		go run "$STATICCHECK" -tags stress "$package"
	done
	tidy
	cd - >/dev/null
done

# Prose, links, commands and paths of documents; make test runs these tests too.
echo 'lint: documents'
go test -count=1 -run 'Documents|Comments' .
go -C cmd/redisdelay test -count=1 -run Documents .

# The library is for other systems and for 32 bits, too.
for system in linux/386 darwin/arm64 windows/amd64; do
	echo "lint: $system"
	GOOS=${system%/*} GOARCH=${system#*/} go vet ./...
done
