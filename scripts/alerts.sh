#!/usr/bin/env bash
# Checks and tests the alert rules with promtool, which it installs where it may, and checks the Prometheus of the compose file with
# its rules; run by `make test-alerts`.
set -euo pipefail
cd "$(dirname "$0")/../prometheus"

command -v promtool >/dev/null || ../scripts/install.sh prometheus
promtool check rules alerts.yml slo.yml
promtool test rules alerts_test.yml slo_test.yml

etc=$(mktemp -d)
trap 'rm -rf "$etc"' EXIT
mkdir "$etc/rules"
cp alerts.yml slo.yml "$etc/rules"
cp ../cmd/redisdelay/deploy/compose/prometheus.yml "$etc"
promtool check config "$etc/prometheus.yml"
