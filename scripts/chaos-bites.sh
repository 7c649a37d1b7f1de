#!/usr/bin/env bash
# Shows that chaos finds faults: undoes each fix of lab/chaos/testdata/bites in a copy of the committed tree,
# and fails unless 200 faults find it. Arguments name the fixes to undo; without any, all are. Takes minutes each.
set -euo pipefail
cd "$(dirname "$0")/.."
seed=${SEED:-1}
out=$PWD/out/chaos/bites
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
[ $# -gt 0 ] || set -- lab/chaos/testdata/bites/*.patch

missed=0
for patch; do
	name=$(basename "$patch" .patch)
	tree=$work/$name
	mkdir "$tree"
	git archive HEAD | tar -x -C "$tree"
	git -C "$tree" apply "$PWD/lab/chaos/testdata/bites/$name.patch"
	CGO_ENABLED=0 go -C "$tree" build -o bin/ ./cmd/dcol ./cmd/dcol-lab
	rm -rf "${out:?}/$name"
	code=0
	"$tree/bin/dcol-lab" chaos --faults 200 --seed "$seed" --fail-fast --shrink 0 --out "$out/$name" &>"$out/$name.log" || code=$?
	found=$(grep -E '^  (BROKEN|WRONG|UNAUTHORISED|UNRECOVERED|GROWN|DIED)' "$out/$name.log" | head -1 || true)
	if [ "$code" = 3 ]; then
		faults=$(grep -oE '^chaos: [0-9]+ of' "$out/$name.log" | tail -1 | grep -oE '[0-9]+')
		echo "$name: found after $faults faults:$found"
	else
		echo "$name: NOT FOUND by 200 faults (exit code $code): see $out/$name.log"
		missed=1
	fi
	rm -rf "$tree"
done
exit $missed
