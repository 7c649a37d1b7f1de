#!/usr/bin/env bash
# Fails, naming the files, if a Go file is not as gofmt writes it.
set -euo pipefail
cd "$(dirname "$0")/.."

dirs=()
for dir in cmd internal lab; do
	[[ ! -d $dir ]] || dirs+=("$dir")
done
unformatted=$(gofmt -l "${dirs[@]}")
[[ -z $unformatted ]] || {
	printf 'error: not formatted:\n%s\nhint: gofmt -w %s\n' "$unformatted" "${dirs[*]}" >&2
	exit 1
}
