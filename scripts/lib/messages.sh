# shellcheck shell=bash
# The messages of the scripts, which source this file. Messages go to stderr.

speaker=$(basename "$0" .sh) # stands before what say prints; the parts of a larger script set that one's name

# say MESSAGE... prints what the script does now.
say() { printf '%s: %s\n' "$speaker" "$*" >&2; }

# die PROBLEM [HINT] prints what is wrong, and how to fix it, and ends the script.
die() {
	printf 'error: %s\n' "$1" >&2
	[[ -z ${2-} ]] || printf 'hint: %s\n' "$2" >&2
	exit 1
}
