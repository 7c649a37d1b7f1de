#!/usr/bin/env bash
# Builds the Debian packages twice and compares them, checks them with lintian, and installs, upgrades, removes and
# purges them in a bare Debian 12 and 13 (root):
#
#   scripts/test-deb.sh [bookworm|trixie...]
#
# The upgrade runs beside an agent, which must go on. The output goes to out/deb/SUITE.log. Then two bare hosts go from the
# package to a first detour, two with systemd are upgraded in mid-download, two use all that needs rights, and one runs the
# image of packaging/container. The confinement of the agent's unit is measured.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh
# shellcheck source=scripts/lib/roots.sh disable=SC1091
. scripts/lib/roots.sh

arch=$(dpkg --print-architecture)
old=0.0.1 new=0.0.2

# build makes packages of two versions, the newer one twice, and compares the bytes.
build() {
	rm -rf out/deb
	say 'building packages of two versions, one of them twice'
	scripts/deb.sh "$new" >out/deb-first
	mkdir -p out/deb-again
	mv out/deb/*"_${new}_"*.deb out/deb-again/
	scripts/deb.sh "$new" >out/deb-second
	local package
	for package in out/deb-again/*.deb; do
		cmp "$package" "out/deb/${package##*/}" || die "two builds of ${package##*/} differ" 'diffoscope shows in what'
	done
	rm -rf out/deb-again out/deb-first out/deb-second
	scripts/deb.sh "$old" >/dev/null
}

check() {
	say 'lintian'
	lintian --fail-on error,warning --suppress-tags bad-distribution-in-changes-file "out/deb/"*"_${new}_"*.deb ||
		die 'lintian finds faults' 'see above'
}

# try SUITE runs the life of a package in a bare root.
try() {
	local suite=$1 root
	root=$(fresh "$suite" deb)
	mkdir -p "$root/root/deb"
	cp "out/deb/"*"_$arch.deb" "$root/root/deb/"
	cp scripts/test-deb-inside.sh "$root/root/"
	if inside "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
		unshare -n bash /root/test-deb-inside.sh "$old" "$new" "$arch" >"out/deb/$suite.log" 2>&1 </dev/null; then
		say "$suite passed"
	else
		say "$suite FAILED; the end of out/deb/$suite.log:"
		tail -n 20 "out/deb/$suite.log" >&2
		return 1
	fi
}

# begin SUITE goes from the package to a first detour, on two bare roots.
begin() {
	local suite=$1 alice bob
	alice=$(fresh "$suite" alice)
	bob=$(fresh "$suite" bob)
	scripts/test-deb-first.sh "out/deb/dcol_${new}_$arch.deb" "$alice" "$bob"
}

# upgrade SUITE upgrades two hosts in mid-download.
upgrade() {
	local suite=$1 alice bob
	alice=$(fresh "$suite" alice)
	bob=$(fresh "$suite" bob)
	scripts/test-deb-upgrade.sh "out/deb/dcol_${old}_$arch.deb" "out/deb/dcol_${new}_$arch.deb" "$alice" "$bob"
}

# rights SUITE uses all that needs rights, on two hosts with systemd.
rights() {
	local suite=$1 alice bob
	alice=$(fresh "$suite" alice)
	bob=$(fresh "$suite" bob)
	scripts/test-deb-rights.sh "out/deb/dcol_${new}_$arch.deb" "$alice" "$bob"
}

# minimal SUITE makes the archive of a root directory, for a container's image.
minimal() {
	local root=.cache/roots/$1-minimal
	[[ ! -e $root.tar ]] || return 0
	say "installing a minimal Debian $1 for the container's image"
	rm -rf "$root"
	debootstrap --variant=minbase "$1" "$root" >"out/roots/$1-minimal.install.log" 2>&1 ||
		die "Debian $1 cannot be installed" "see out/roots/$1-minimal.install.log"
	tar -C "$root" -cf "$root.tar.part" .
	mv "$root.tar.part" "$root.tar"
	rm -rf "$root"
}

# contain SUITE runs docs/containers.md's commands on a host with Podman, and a client takes a detour through the container.
contain() {
	local suite=$1 alice bob image
	image=$(sed -nE 's/^FROM .*debian:([a-z]+)-slim$/\1/p' packaging/container/Containerfile)
	minimal "$image"
	alice=$(fresh "$suite" alice)
	bob=$(fresh "$suite" bob)
	scripts/test-deb-container.sh "out/deb/dcol_${new}_$arch.deb" ".cache/roots/$image-minimal.tar" "$alice" "$bob"
}

# exposed checks how far the agent's unit is confined; systemd's scale goes from 0 to 10, the most exposed.
exposed() {
	local unit
	unit=$(mktemp -d)
	dpkg-deb -x "out/deb/dcol_${new}_$arch.deb" "$unit"
	systemd-analyze security --offline=true --threshold=30 "$unit/usr/lib/systemd/system/dcol.service" >"out/deb/exposure.txt" ||
		die 'the agent is too exposed' 'see out/deb/exposure.txt'
	say "exposure: $(tail -n 1 out/deb/exposure.txt)"
	rm -rf "$unit"
}

suites=("$@")
(($# > 0)) || suites=(bookworm trixie)
(($(id -u) == 0)) || die "only root can make root directories and namespaces" "run it as root"
mkdir -p out/roots
build
check
exposed
failed=0
for suite in "${suites[@]}"; do
	bare "$suite"
	try "$suite" || failed=1
	begin "$suite" || failed=1
	upgrade "$suite" || failed=1
	rights "$suite" || failed=1
	# Debian 12's Podman takes no smaller limits than its own (docs/containers.md has what else it lacks).
	[[ $suite == bookworm ]] || contain "$suite" || failed=1
done
exit "$failed"
