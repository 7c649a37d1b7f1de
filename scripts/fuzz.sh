#!/usr/bin/env bash
# Runs every fuzz target of the module for a while: scripts/fuzz.sh 10s
# New failing inputs are saved in the package's testdata/fuzz, to be committed
# with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

fuzztime=${1:?usage: scripts/fuzz.sh DURATION}
failed=()
ran=0
for package in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do
	targets=$(go test -list '^Fuzz' "$package")
	for target in $(grep '^Fuzz' <<<"$targets" || true); do
		printf '== %s %s\n' "$package" "$target"
		go test -run='^$' -fuzz="^$target\$" -fuzztime="$fuzztime" "$package" ||
			failed+=("$package $target")
		ran=$((ran + 1))
	done
done
if [[ ${#failed[@]} -gt 0 ]]; then
	printf 'error: fuzz target failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
printf 'fuzz: %d targets, none failed\n' "$ran"
