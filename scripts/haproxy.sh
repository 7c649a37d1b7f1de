#!/usr/bin/env bash
# Fetches HAProxy 3.2, which speaks MPTCP, with its libraries from a newer Debian into .cache/haproxy-3.2, for
# `make bench-convert`. It installs nothing, and changes nothing outside of that folder. .cache/haproxy-3.2/haproxy
# runs it. If the mirror cannot be reached, it says so and fails; the benchmark then leaves HAProxy 3.2 out.
set -euo pipefail

wanted='3.2.*'
suite=forky
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/.cache/haproxy-3.2

# shellcheck source=scripts/lib/messages.sh disable=SC1091
. "$root/scripts/lib/messages.sh"

[[ ! -x $dir/haproxy ]] || exit 0
command -v apt-get >/dev/null || die 'this machine has no apt-get, which fetches HAProxy 3.2' \
	'the benchmark leaves it out; on Debian it is measured'

new=$dir.new
rm -rf "$new"
trap 'rm -rf "$new"' EXIT
mkdir -p "$new"/apt/{lists,cache,etc/preferences.d} "$new/root"
printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$suite" \
	>"$new/apt/etc/sources.list"
: >"$new/apt/status" # as if nothing were installed, so that all libraries are fetched

# private_apt runs apt-get, which reads and writes only below the folder.
private_apt() { apt-get "${options[@]}" "$@" </dev/null >&2; }
options=(-qq
	-o "Dir::State=$new/apt" -o "Dir::State::lists=$new/apt/lists" -o "Dir::State::status=$new/apt/status"
	-o "Dir::Cache=$new/apt/cache" -o "Dir::Etc=$new/apt/etc" -o Dir::Etc::sourceparts=- -o Dir::Etc::parts=-
	-o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=30
	-o APT::Sandbox::User=root -o APT::Update::Error-Mode=any)

say "fetching HAProxy 3.2 and its libraries from Debian $suite, some 50 MB, into .cache/haproxy-3.2"
private_apt update ||
	die "could not read the packages of Debian $suite at $mirror" 'is the mirror reachable? DEBIAN_MIRROR names another'
private_apt install -y --download-only --no-install-recommends "haproxy=$wanted" ||
	die "Debian $suite has no HAProxy $wanted any more, or it could not be fetched" \
		'name another version or suite in scripts/haproxy.sh'
for package in "$new"/apt/cache/archives/*.deb; do
	dpkg-deb -x "$package" "$new/root"
done
rm -rf "$new/apt"

# The program runs with the libraries it was built for, by their own dynamic linker.
cat >"$new/haproxy" <<'RUN'
#!/bin/sh
root=$(dirname "$0")/root
for linker in "$root"/usr/lib/*/ld-linux-*.so.* "$root"/lib/*/ld-linux-*.so.*; do
	[ -e "$linker" ] && exec "$linker" --library-path "$(dirname "$linker")" "$root/usr/sbin/haproxy" "$@"
done
echo "haproxy: no dynamic linker in $root" >&2
exit 1
RUN
chmod 755 "$new/haproxy"
version=$("$new/haproxy" -v | head -n 1) || die 'the HAProxy that was fetched does not run' 'see the message above'
rm -rf "$dir"
mv "$new" "$dir"
trap - EXIT
say "$version"
