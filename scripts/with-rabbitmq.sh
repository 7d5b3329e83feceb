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

# install PACKAGE...: with apt-get, if we may, and without starting services
install() {
	[[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
	local policy=''
	if [[ ! -e /usr/sbin/policy-rc.d ]]; then
		policy=/usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod +x $policy
	fi
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
	local get=("${apt[@]}" install -y --no-install-recommends "$@") said status=0
	said=$({ "${get[@]}" || { "${apt[@]}" update && "${get[@]}"; }; } </dev/null 2>&1) || status=$?
	rm -f ${policy:+"$policy"}
	[[ $status == 0 ]] || echo "$said" >&2
	return $status
}

[[ $# -gt 0 ]] || die "usage: $0 COMMAND [ARG...]"
there || install rabbitmq-server || die "no RabbitMQ: install rabbitmq-server"
there || die "no RabbitMQ at /usr/lib/rabbitmq"
exec "$@"
