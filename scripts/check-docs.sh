#!/usr/bin/env bash
# Fails if a link between the texts is broken, or if docs/cli.md lacks a command or
# flag of bin/dcol or bin/dcol-lab.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
complain() {
	printf 'error: %s\n' "$*" >&2
	bad=1
}

# anchors FILE prints GitHub's anchors of its headings.
anchors() {
	sed -n 's/^#\{1,6\} //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

for file in *.md docs/*.md; do
	while read -r link; do
		target=${link%%#*} anchor=
		[[ $link != *'#'* ]] || anchor=${link#*#}
		path=$file
		[[ -z $target ]] || path=$(dirname "$file")/$target
		if [[ ! -e $path ]]; then
			complain "$file: a link leads nowhere: $link"
		elif [[ -n $anchor ]] && ! anchors "$path" | grep -qxF -- "$anchor"; then
			complain "$file: no such heading: $link"
		fi
	done < <(grep -oE '\]\([^)]+\)' "$file" | sed 's/^](//; s/)$//' | grep -v '^https\?:' || true)
done

# commands PREFIX... prints every subcommand with its parents, one per line.
commands() {
	local name
	for name in $("$@" --help | awk '/^Available Commands:/ {on = 1; next} /^[^ ]/ {on = 0} on && NF {print $1}'); do
		[[ $name != help && $name != completion ]] || continue
		echo "${*:2} $name"
		commands "$@" "$name"
	done
}
for program in dcol dcol-lab; do
	while read -r command; do
		read -ra words <<<"$command"
		grep -qF -- "$program $command" docs/cli.md || complain "docs/cli.md does not name: $program $command"
		while read -r flag; do
			grep -qF -- "$flag" docs/cli.md || complain "docs/cli.md does not name $flag of $program $command"
		done < <("bin/$program" "${words[@]}" --help | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -- '--[a-z-]+' | grep -v -- --help)
	done < <(commands "bin/$program")
done
exit "$bad"
