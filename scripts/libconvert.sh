#!/usr/bin/env bash
# Tests the converter with another implementation of its clients, Tessares'
# libconvert: scripts/libconvert.sh [FOLDER]
# Sources and build go to FOLDER (default: a temporary one), never into the
# repository. Needs root, git, cmake, gcc, perl, pkgconf and curl, and the
# Internet once. Skips, with the reason, if GitHub or Debian cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh

skip() {
	printf 'libconvert: skipped: %s\n' "$1"
	exit 0
}

if [[ $# -gt 0 ]]; then
	folder=$1
	mkdir -p "$folder"
else
	folder=$(mktemp -d)
	trap 'rm -rf "$folder"' EXIT
fi
folder=$(cd "$folder" && pwd)
case $folder/ in
"$PWD"/*)
	die "$folder is in the repository" 'name a folder outside'
	;;
esac
for tool in git cmake gcc perl pkg-config curl; do
	command -v "$tool" >/dev/null || skip "needs $tool"
done

# checkout NAME OWNER/NAME COMMIT: checks a repository out.
checkout() {
	local to=$folder/$1
	[[ -d $to/.git ]] || git clone -q "https://github.com/$2" "$to" || skip "GitHub cannot be reached"
	git -C "$to" checkout -q -f "$3"
}
checkout libconvert Tessares/libconvert 948053cdfe31ce4b3f5543663f2ce22bdfddb1c8
checkout libconvert/lib/syscall_intercept pmem/syscall_intercept ca4b13531f883597c2f04a40e095f76f6c3a6d22
checkout libconvert/lib/log.c rxi/log.c 783d481e074e2103bf6f59a9ec3304843c23f849

# The disassembler's headers, without installing the package.
if ! pkg-config --exists capstone; then
	if [[ ! -d $folder/capstone ]]; then
		(cd "$folder" && apt-get -q download libcapstone-dev libcapstone4 >/dev/null) ||
			skip "libcapstone-dev cannot be downloaded; install it"
		for package in "$folder"/libcapstone*.deb; do
			dpkg -x "$package" "$folder/capstone"
		done
	fi
	libraries=$(dirname "$(find "$folder/capstone" -name libcapstone.so)")
	export PKG_CONFIG_SYSROOT_DIR=$folder/capstone PKG_CONFIG_PATH=$libraries/pkgconfig
	export LDFLAGS="-L$libraries" LD_LIBRARY_PATH=$libraries
fi
# Its own tests need tools that Debian no longer has.
sed -i '/add_subdirectory(tests)/d' "$folder/libconvert/CMakeLists.txt"
build() {
	cmake -S "$folder/libconvert" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTS=OFF -DBUILD_EXAMPLES=OFF &&
		cmake --build "$folder/build" --target convert_client
}
build >"$folder/build.log" 2>&1 || {
	tail -n 20 "$folder/build.log" >&2
	die 'libconvert does not build'
}

LIBCONVERT=$folder/build/libconvert_client.so go test -count=1 -run '^TestLibconvert$' -v ./internal/converter/server
