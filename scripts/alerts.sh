#!/usr/bin/env bash
# Checks and tests the alert rules with promtool, which it installs where it may; run by
# `make test-alerts`.
set -euo pipefail
cd "$(dirname "$0")/../prometheus"

command -v promtool >/dev/null || ../scripts/install.sh prometheus
promtool check rules alerts.yml slo.yml
promtool test rules alerts_test.yml slo_test.yml
