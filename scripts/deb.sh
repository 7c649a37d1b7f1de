#!/usr/bin/env bash
# Builds the Debian packages dcol and dcol-lab for amd64 and arm64 into out/deb:
#
#   scripts/deb.sh [VERSION]
#
# The same commit gives the same bytes, on any host: times are the commit's, the owner is root, and Go's programs
# contain no paths. gzip compresses, because xz takes minutes for programs of this size on a busy machine.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.cache/go/bin:$PATH:/usr/local/go/bin

umask 022
export LC_ALL=C TZ=UTC
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# version converts a tag such as v1.2.3, or what follows it, to a version that Debian orders right.
version() {
	local described
	described=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || true)
	if [[ $described =~ ^v([0-9][0-9.]*)(-([0-9]+)-(g[0-9a-f]+))?(-dirty)?$ ]]; then
		printf '%s%s%s' "${BASH_REMATCH[1]}" "${BASH_REMATCH[3]:++${BASH_REMATCH[3]}.${BASH_REMATCH[4]}}" "${BASH_REMATCH[5]:++dirty}"
		return
	fi
	printf '0~%s.%s' "$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)" "$(git describe --always --dirty | tr - +)"
}

version=${1:-$(version)}
work=out/deb/build
host=$(go env GOARCH)
rm -rf "$work"
mkdir -p "$work"

# build ARCH makes both programs.
build() {
	mkdir -p "$work/$1"
	GOARCH=$1 CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" \
		-o "$work/$1/" ./cmd/dcol ./cmd/dcol-lab
}

# licenses prints the licences of the modules in a program.
licenses() {
	local module path file
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "./cmd/$1" | sort -u |
		while read -r module version path; do
			for file in "$path"/LICEN[CS]E* "$path"/COPYING* "$path"/NOTICE*; do
				[[ ! -f $file ]] || printf '%s %s: %s\n\n%s\n\n\n' "$module" "$version" "${file##*/}" "$(cat "$file")"
			done
		done
}

# documents PACKAGE ROOT writes what Debian wants in every package.
documents() {
	local docs=$2/usr/share/doc/$1
	mkdir -p "$docs" "$2/usr/share/lintian/overrides"
	install -m 644 packaging/debian/copyright "$docs/copyright"
	licenses "$1" | gzip -9n >"$docs/licenses.gz"
	printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- The dcol authors <dcol@users.noreply.github.com>  %s\n' \
		"$1" "$version" "$(date -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$docs/changelog.gz"
	gzip -9nc CHANGELOG.md >"$docs/CHANGELOG.md.gz"
	sed "s/@PACKAGE@/$1/" packaging/debian/lintian-overrides >"$2/usr/share/lintian/overrides/$1"
}

# pack PACKAGE ARCH ROOT makes the package of a tree.
pack() {
	local script package=$1 arch=$2 root=$3
	documents "$package" "$root"
	find "$root/usr/share/man" -type f -exec gzip -9n {} +
	mkdir -p "$root/DEBIAN"
	sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$(du -k -s --apparent-size "$root" | cut -f 1)/" \
		"packaging/debian/$package.control" >"$root/DEBIAN/control"
	for script in postinst prerm postrm; do
		[[ ! -e packaging/debian/$package.$script ]] || install -m 755 "packaging/debian/$package.$script" "$root/DEBIAN/$script"
	done
	(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
	find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group -Zgzip -z6 --build "$root" "out/deb/${package}_${version}_$arch.deb" >/dev/null
}

for arch in amd64 arm64; do
	build "$arch"
done
[[ -x $work/$host/dcol ]] || build "$host"
for arch in amd64 arm64; do
	root=$work/$arch/root
	# The texts come from the programs of this host.
	make --no-print-directory -s install DESTDIR="$PWD/$root/dcol" PREFIX=/usr ZSH_COMPLETION=share/zsh/vendor-completions/_dcol \
		DCOL="$work/$arch/dcol" TEXTS="$work/$host/dcol"
	mkdir -p "$root/dcol/usr/share/doc/dcol/examples"
	"$work/$host/dcol" agent --sample >"$root/dcol/usr/share/doc/dcol/examples/dcol.toml"
	install -m 644 -t "$root/dcol/usr/share/doc/dcol/examples" packaging/prometheus/dcol.rules.yml packaging/grafana/dcol.json
	install -D -m 755 "$work/$arch/dcol-lab" "$root/dcol-lab/usr/bin/dcol-lab"
	"$work/$host/dcol-lab" man "$root/dcol-lab/usr/share/man/man1" >/dev/null
	mkdir -p "$root/dcol-lab/usr/share/bash-completion/completions"
	"$work/$host/dcol-lab" completion bash >"$root/dcol-lab/usr/share/bash-completion/completions/dcol-lab"
	pack dcol "$arch" "$root/dcol"
	pack dcol-lab "$arch" "$root/dcol-lab"
done
rm -rf "$work"
sha256sum out/deb/*_"$version"_*.deb
