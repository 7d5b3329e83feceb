#!/usr/bin/env bash
# Checks and tests the alert rules with promtool, which it takes from Debian's package if there is
# none; run by `make test-alerts`.
set -euo pipefail

promtool=$(command -v promtool || true)
if [[ -z $promtool ]]; then
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	chmod 755 "$dir"
	(
		cd "$dir"
		apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }
		dpkg-deb -x prometheus_*.deb .
	) >"$dir/log" 2>&1 || {
		cat "$dir/log" >&2
		exit 1
	}
	promtool=$dir/usr/bin/promtool
fi
cd "$(dirname "$0")/../prometheus"
"$promtool" check rules alerts.yml
"$promtool" test rules alerts_test.yml
