#!/usr/bin/env bash
# Runs `make test` of the last commit on a bare Debian 12 and 13 that have git and make
# alone (root):
#
#   scripts/test-roots.sh [bookworm|trixie...]
#
# Each is a root directory below .cache/roots, made by debootstrap and copied for each
# run. The tests run in it with this machine's kernel and networks, and see none of its
# files. Proxies and certificates that this shell's environment names are used there too.
# The output goes to out/roots/SUITE.log.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh
# shellcheck source=scripts/lib/roots.sh disable=SC1091
. scripts/lib/roots.sh

# run tests the last commit on one suite.
run() {
	local suite=$1 name root
	local environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb)
	root=$(fresh "$suite" run)
	for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY GOPROXY GOSUMDB; do
		[[ ! -v $name ]] || environment+=("$name=${!name}")
	done
	if [[ -v SSL_CERT_FILE ]]; then
		mkdir -p "$root/opt/certificates"
		cp -L "$SSL_CERT_FILE" "$root/opt/certificates/all.crt"
		environment+=(SSL_CERT_FILE=/opt/certificates/all.crt)
	fi
	git clone -q "$checkout" "$root/root/dcol"
	say "testing on $suite; the output goes to out/roots/$suite.log"
	if inside "$root" env -i "${environment[@]}" make -C /root/dcol test >"out/roots/$suite.log" 2>&1 </dev/null; then
		say "$suite passed"
	else
		say "$suite FAILED: $(grep -c '^--- FAIL' "out/roots/$suite.log" || true) tests; see out/roots/$suite.log"
		return 1
	fi
}

suites=("$@")
(($# > 0)) || suites=(bookworm trixie)
(($(id -u) == 0)) || die "only root can make root directories and namespaces" "run it as root"
mkdir -p out/roots
failed=0
for suite in "${suites[@]}"; do
	bare "$suite"
	run "$suite" || failed=1
done
exit "$failed"
