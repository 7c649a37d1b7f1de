#!/usr/bin/env bash
# Runs every property test of the module with other random seeds each round: scripts/rapid.sh 20
# An input that fails is shrunk and saved in the package's testdata/rapid, to be committed together
# with the mend. `go test` replays what is there before it draws anything else.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:?usage: scripts/rapid.sh ROUNDS}
unset RAPID_SEED # rapid draws one for every test
export RAPID_CHECKS=${RAPID_CHECKS:-400}

# Each package with the tests in its files that use rapid, as a pattern for -run.
declare -A tests=()
while read -r file; do
	package=./$(dirname "$file")
	while read -r name; do
		tests[$package]+="${tests[$package]:+|}$name"
	done < <(sed -n 's/^func \(Test[A-Za-z0-9_]*\)(t \*testing\.T).*/\1/p' "$file")
done < <(git grep -l '"pgregory.net/rapid"' -- '*_test.go')
if [[ ${#tests[@]} -eq 0 ]]; then
	echo "error: no property tests were found" >&2
	exit 1
fi

declare -A failed=()
for ((round = 1; round <= rounds; round++)); do
	printf '== round %d of %d\n' "$round" "$rounds"
	for package in $(printf '%s\n' "${!tests[@]}" | sort); do
		go test -count=1 -timeout=20m -run "^(${tests[$package]})\$" "$package" || failed[$package]=1
	done
done
if [[ ${#failed[@]} -gt 0 ]]; then
	printf 'error: a property does not hold in %s\n' "${!failed[@]}" >&2
	git status --short -- '*/testdata/rapid/*' >&2
	exit 1
fi
printf 'rapid: %d packages, %d rounds, none failed\n' "${#tests[@]}" "$rounds"
