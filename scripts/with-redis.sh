#!/usr/bin/env bash
# Runs a command with a real Redis server for the tests, and stops it afterwards.
#
#   scripts/with-redis.sh COMMAND [ARG...]
#
# The server is the one at REDIS_ADDR (host:port) if that is set; else a fresh
# one on a free port of this machine. A missing redis-server is installed where
# that can be done (root, apt-get). The command sees REDIS_ADDR,
# REDIS_SERVER_BIN (see internal/test/redistest) and REDISTEST_REQUIRED=1, with which
# no test may be skipped for want of them.
set -euo pipefail

dir='' server='' command=''

die() {
	echo "with-redis: $*" >&2
	exit 1
}

# ask HOST:PORT COMMAND: what that server answers
ask() {
	(
		exec 3<>"/dev/tcp/${1%:*}/${1##*:}"
		printf '%s\r\nQUIT\r\n' "$2" >&3
		while IFS= read -r -t 5 line <&3; do echo "${line%$'\r'}"; done
	) 2>/dev/null
}

install() { "$(dirname "$0")/install.sh" "$@"; }

find_server() {
	REDIS_SERVER_BIN=${REDIS_SERVER_BIN:-$(command -v redis-server || command -v valkey-server)}
}

# start_server: on the first port that no one else has
start_server() {
	local port
	dir=$(mktemp -d)
	for _ in {1..10}; do
		port=$((20000 + RANDOM % 12000)) # below the ports that systems hand out by themselves
		"$REDIS_SERVER_BIN" --port "$port" --bind 127.0.0.1 --save '' --appendonly no \
			--dir "$dir" --logfile "$dir/log" </dev/null >/dev/null 2>&1 &
		server=$!
		for _ in {1..200}; do
			kill -0 $server 2>/dev/null || break
			# Its process number tells it from another server that has the port.
			if [[ $(ask "127.0.0.1:$port" 'INFO server') == *$'\n'"process_id:$server"$'\n'* ]]; then
				REDIS_ADDR=127.0.0.1:$port
				return
			fi
			sleep 0.05
		done
		kill -9 $server 2>/dev/null || true
	done
	cat "$dir/log" >&2
	die "$REDIS_SERVER_BIN does not start"
}

# shellcheck disable=SC2317 # called by a trap
stop() {
	trap '' HUP INT TERM
	[[ -z $server ]] || { kill -9 "$server" && wait "$server"; } 2>/dev/null || true
	rm -rf ${dir:+"$dir"}
}

# interrupted SIGNAL NUMBER: ends the command and its children first, then by
# EXIT the server
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

command -v "${CC:-gcc}" >/dev/null || install gcc libc6-dev || die "no C compiler, which go test -race needs: install gcc"
find_server || { install redis-server && find_server; } || true
if [[ -n ${REDIS_ADDR:-} ]]; then
	[[ $(ask "$REDIS_ADDR" PING) == +PONG* ]] || die "REDIS_ADDR=$REDIS_ADDR does not answer PING"
else
	[[ -n $REDIS_SERVER_BIN ]] || die "no redis-server: install redis-server or valkey-server, or set REDIS_ADDR"
	start_server
fi
export REDIS_ADDR REDIS_SERVER_BIN REDISTEST_REQUIRED=1

# In the background, because a shell that waits for a command in the foreground
# does not act on signals, and in a process group of its own (-m), because the
# go command does not pass them on to the tests.
set -m
"$@" &
command=$!
status=0
wait $command || status=$?
exit $status
