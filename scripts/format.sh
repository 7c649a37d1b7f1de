#!/usr/bin/env bash
# Fails, naming the files, if a Go file is not as gofmt writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh

dirs=()
for dir in cmd internal lab; do
	[[ ! -d $dir ]] || dirs+=("$dir")
done
unformatted=$(gofmt -l "${dirs[@]}")
[[ -z $unformatted ]] || die "not formatted:
$unformatted" "gofmt -w ${dirs[*]}"
