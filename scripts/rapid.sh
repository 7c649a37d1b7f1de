#!/usr/bin/env bash
# Runs every property test of the module with other random seeds each round, with the race
# detector: scripts/rapid.sh 20
#
# A failing input is shrunk and saved in the package's testdata/rapid, to be committed with the fix.
# `go test` replays saved inputs first and, if one fails, tries no others. So each round runs in a
# separate folder without them, and draws new inputs whatever earlier rounds found.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh
root=$PWD

rounds=${1:?usage: scripts/rapid.sh ROUNDS}
unset RAPID_SEED RAPID_FAILFILE RAPID_NOFAILFILE # rapid draws a seed for every test
export RAPID_CHECKS=${RAPID_CHECKS:-400} RAPID_STEPS=${RAPID_STEPS:-100} CGO_ENABLED=1

# Each package with the tests in its files that use rapid, as a pattern for -run.
declare -A tests=()
while read -r file; do
	package=$(dirname "$file")
	while read -r name; do
		tests[$package]+="${tests[$package]:+|}$name"
	done < <(sed -n 's/^func \(Test[A-Za-z0-9_]*\)(t \*testing\.T).*/\1/p' "$file")
done < <(git grep -l '"pgregory.net/rapid"' -- '*_test.go')
[[ ${#tests[@]} -gt 0 ]] || die 'no property tests were found'
mapfile -t packages < <(printf '%s\n' "${!tests[@]}" | sort)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in "${packages[@]}"; do
	mkdir -p "$work/$package"
	go test -race -c -o "$work/$package/run" "./$package"
done

# try PACKAGE runs its property tests once, and copies the inputs that rapid saves to the package's testdata.
try() {
	local package=$1 folder=$work/$1 good=0 file
	rm -rf "$folder/testdata"
	[[ ! -d $package/testdata ]] || cp -R "$package/testdata" "$folder/"
	rm -rf "$folder/testdata/rapid"
	(cd "$folder" && ./run -test.timeout=20m -test.run "^(${tests[$package]})\$") || good=1
	while read -r file; do
		mkdir -p "$root/$package/$(dirname "$file")"
		mv "$folder/$file" "$root/$package/$file"
		printf 'saved %s\n' "$package/$file"
	done < <(cd "$folder" && find testdata/rapid -name '*.fail' 2>/dev/null)
	return "$good"
}

declare -A failed=()
for ((round = 1; round <= rounds; round++)); do
	printf '== round %d of %d\n' "$round" "$rounds"
	for package in "${packages[@]}"; do
		printf '%s\n' "$package"
		try "$package" || failed[$package]=1
	done
done
if [[ ${#failed[@]} -gt 0 ]]; then
	printf 'error: a property does not hold in %s\n' "${!failed[@]}" >&2
	printf 'hint: go test replays what was saved; commit it together with the fix\n' >&2
	exit 1
fi
printf 'rapid: %d packages, %d rounds, none failed\n' "${#tests[@]}" "$rounds"
