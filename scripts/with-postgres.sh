#!/usr/bin/env bash
# Runs a command with a real PostgreSQL server, and stops it afterwards.
#
#   scripts/with-postgres.sh COMMAND [ARG...]
#
# The server is the one at POSTGRES_URL if that is set; else a fresh one on a free port of this machine, with no data
# and without fsync. A missing PostgreSQL is installed where that can be done (root, apt-get), without starting its
# service. The command sees POSTGRES_URL.
set -euo pipefail

dir='' command='' run=()

die() {
	echo "with-postgres: $*" >&2
	exit 1
}

# find_server: the directory of initdb and pg_ctl
find_server() {
	bin=$(dirname "$(command -v initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1)")
	[[ -x $bin/initdb && -x $bin/pg_ctl ]]
}

# start_server: on the first port that no one else has. The server refuses to run as root.
start_server() {
	local port
	dir=$(mktemp -d)
	if [[ $(id -u) == 0 ]]; then
		run=(setpriv --reuid=postgres --regid=postgres --clear-groups)
		chown postgres: "$dir"
	fi
	"${run[@]}" "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$dir/initdb" 2>&1 || {
		cat "$dir/initdb" >&2
		die "initdb fails"
	}
	for _ in {1..10}; do
		port=$((20000 + RANDOM % 12000)) # below the ports that systems hand out by themselves
		if "${run[@]}" "$bin/pg_ctl" -D "$dir/data" -w -t 60 -l "$dir/log" \
			-o "-h 127.0.0.1 -p $port -k $dir -c fsync=off -c max_connections=200" start >/dev/null 2>&1; then
			POSTGRES_URL="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
			return
		fi
	done
	cat "$dir/log" >&2
	die "PostgreSQL does not start"
}

# shellcheck disable=SC2317 # called by a trap
stop() {
	trap '' HUP INT TERM
	if [[ -n $dir ]]; then
		"${run[@]}" "$bin/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null 2>&1 || true
		rm -rf "$dir"
	fi
}

# interrupted SIGNAL NUMBER: ends the command and its children first, then by EXIT the server
# shellcheck disable=SC2317 # called by traps
interrupted() {
	if [[ -n $command ]]; then
		kill -s "$1" -- "-$command" 2>/dev/null || true
		wait "$command" 2>/dev/null || true
	fi
	exit $((128 + $2))
}

[[ $# -gt 0 ]] || die "usage: $0 COMMAND [ARG...]"
trap stop EXIT
trap 'interrupted HUP 1' HUP
trap 'interrupted INT 2' INT
trap 'interrupted TERM 15' TERM

if [[ -z ${POSTGRES_URL:-} ]]; then
	find_server || { "$(dirname "$0")/install.sh" postgresql && find_server; } || die "no PostgreSQL: install postgresql, or set POSTGRES_URL"
	start_server
fi
export POSTGRES_URL

# In a process group of its own (-m), because the go command does not pass signals on to the tests.
set -m
"$@" &
command=$!
status=0
wait $command || status=$?
exit $status
