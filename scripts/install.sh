#!/usr/bin/env bash
# Installs Debian packages that are missing, without starting their services. Fails if it may not: it has to be root,
# on a system with apt-get.
#
#   scripts/install.sh PACKAGE...
set -euo pipefail

policy=''
trap '[[ -z $policy ]] || rm -f "$policy"' EXIT
trap 'exit 1' HUP INT TERM

[[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || exit 1
if [[ ! -e /usr/sbin/policy-rc.d ]]; then
	policy=/usr/sbin/policy-rc.d
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
fi
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
get=("${apt[@]}" install -y --no-upgrade --no-install-recommends "$@")
said=$({ "${get[@]}" || { "${apt[@]}" update && "${get[@]}"; }; } </dev/null 2>&1) || {
	echo "$said" >&2
	exit 1
}
