#!/usr/bin/env bash
# Puts the browser libraries of package dashboard into dashboard/assets, from their npm packages.
#
#   scripts/dashboard-assets.sh
#
# A new version is a change of the list below. Each file has its licence beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
assets=$PWD/dashboard/assets

# package version, file in the package, name of the asset
list='
htmx.org 2.0.11 dist/htmx.min.js htmx.js
htmx-ext-sse 2.2.4 dist/sse.min.js htmx-sse.js
idiomorph 0.8.0 dist/idiomorph-ext.min.js htmx-morph.js
uplot 1.6.32 dist/uPlot.iife.min.js uplot.js
uplot 1.6.32 dist/uPlot.min.css uplot.css
'

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
while read -r package version file asset; do
	[[ -n $package ]] || continue
	rm -rf "$dir/package"
	(cd "$dir" && npm pack --silent "$package@$version" >/dev/null && tar xzf "$package-$version.tgz")
	cp "$dir/package/$file" "$assets/$asset"
	cp "$dir/package/LICENSE" "$assets/${asset%.*}.LICENSE"
	chmod 644 "$assets/$asset" "$assets/${asset%.*}.LICENSE"
done <<<"$list"
