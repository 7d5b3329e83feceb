#!/usr/bin/env bash
# Puts the browser libraries of package dashboard into dashboard/assets, from their npm packages, and
# the one of its tests into tests/dashboard/testdata.
#
#   scripts/dashboard-assets.sh
#
# A new version is a change of the list below. Each file has its licence beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

# package version, file in the package, name of the asset
list='
htmx.org 2.0.11 dist/htmx.min.js dashboard/assets/htmx.js
htmx-ext-sse 2.2.4 dist/sse.min.js dashboard/assets/htmx-sse.js
idiomorph 0.8.0 dist/idiomorph-ext.min.js dashboard/assets/htmx-morph.js
uplot 1.6.32 dist/uPlot.iife.min.js dashboard/assets/uplot.js
uplot 1.6.32 dist/uPlot.min.css dashboard/assets/uplot.css
axe-core 4.14.1 axe.min.js tests/dashboard/testdata/axe.js
'

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
while read -r package version file asset; do
	[[ -n $package ]] || continue
	rm -rf "$dir/package"
	(cd "$dir" && npm pack --silent "$package@$version" >/dev/null && tar xzf "$package-$version.tgz")
	asset=$root/$asset
	mkdir -p "$(dirname "$asset")"
	cp "$dir/package/$file" "$asset"
	cp "$dir/package/LICENSE" "${asset%.*}.LICENSE"
	chmod 644 "$asset" "${asset%.*}.LICENSE"
done <<<"$list"
