#!/usr/bin/env bash
# Runs a command on a machine that has RabbitMQ, for tests that start one. A missing rabbitmq-server is installed
# where that can be done (root, apt-get), without starting it; else this fails.
#
#   scripts/with-rabbitmq.sh COMMAND [ARG...]
set -euo pipefail

die() {
	echo "with-rabbitmq: $*" >&2
	exit 1
}

there() { compgen -G '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server' >/dev/null && command -v epmd >/dev/null; }

[[ $# -gt 0 ]] || die "usage: $0 COMMAND [ARG...]"
there || "$(dirname "$0")/install.sh" rabbitmq-server || die "no RabbitMQ: install rabbitmq-server"
there || die "no RabbitMQ at /usr/lib/rabbitmq"
exec "$@"
