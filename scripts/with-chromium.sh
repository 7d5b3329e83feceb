#!/usr/bin/env bash
# Runs a command on a machine that has Chromium, for tests that drive it. A missing chromium is installed where that
# can be done (root, apt-get); else this fails.
#
#   scripts/with-chromium.sh COMMAND [ARG...]
set -euo pipefail

die() {
	echo "with-chromium: $*" >&2
	exit 1
}

there() { command -v chromium >/dev/null; }

[[ $# -gt 0 ]] || die "usage: $0 COMMAND [ARG...]"
there || "$(dirname "$0")/install.sh" chromium fonts-dejavu-core || die "no Chromium: install chromium"
there || die "no chromium in PATH"
exec "$@"
