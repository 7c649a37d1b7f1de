#!/usr/bin/env bash
# Compiles the eBPF programs in a copy of the tree, and fails if a generated file
# differs from the committed one.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -a --parents go.mod go.sum internal/kernel/bpf "$copy/"
(cd "$copy" && go generate ./internal/kernel/bpf/...)
diff -rq internal/kernel/bpf "$copy/internal/kernel/bpf" ||
	die 'generated eBPF files are stale' 'make generate, and commit the result'
