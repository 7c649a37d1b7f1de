#!/usr/bin/env bash
# Installs the packages that a make target needs and this machine lacks, after listing
# them. It prints nothing if all are installed.
#
#   scripts/deps.sh build|demo|bench|recording|paper|test|nightly-tshark|nightly-libconvert|test-metrics|test-roots|test-deb|test-kernels|deb|lint|generate
#
# Programs come from Debian's packages. If the machine's Go is too old, a newer one is
# fetched as a Go module into .cache/go of this repository and compared with the sums
# below. `go install` builds Go tools at the versions below into .cache/bin.
set -euo pipefail

go_version=1.26.8
# SHA-256 of golang.org/toolchain's archives for that version.
declare -A go_sum=(
	[amd64]=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7
	[arm64]=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99
)
gotestsum=gotest.tools/gotestsum@v1.13.0
golangci_lint=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

root=$(cd "$(dirname "$0")/.." && pwd)
# After plain su, a root shell has no sbin in its path.
PATH=$root/.cache/go/bin:$PATH:/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin
tools=$root/.cache/bin
policy=/usr/sbin/policy-rc.d
marker='# written by dcol scripts/deps.sh for the time of one installation'

# shellcheck source=scripts/lib/messages.sh disable=SC1091
. "$root/scripts/lib/messages.sh"

packages=() # missing Debian packages
reasons=()  # the purpose of each

# lack PACKAGE PURPOSE adds a package to the list once.
lack() {
	local have
	for have in "${packages[@]}"; do
		[[ $have != "$1" ]] || return 0
	done
	packages+=("$1")
	reasons+=("$2")
}

need_program() { command -v "$1" >/dev/null || lack "$2" "$3"; }
# need_python requires Python with its standard library, which python3-minimal lacks.
need_python() { python3 -c "import asyncio, ctypes" 2>/dev/null || lack python3 "$1"; }
need_file() { compgen -G "$1" >/dev/null || lack "$2" "$3"; }

# has_go reports whether this machine's Go is new enough. Go 1.21 and later can fetch a newer
# version themselves, but do so silently, and not if GOSUMDB is off.
has_go() {
	command -v go >/dev/null || return 1
	local wanted have
	wanted=$(awk '$1 == "go" {print $2}' "$root/go.mod")
	# Run it outside the module: inside, an old go rejects the go line of go.mod.
	have=$(cd / && go env GOVERSION)
	at_least "${have#go}" "$wanted"
}
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; }

# need_go requires Debian's Go if there is none. An old one is enough for fetch_go.
need_go() {
	has_go || need_program go golang-go "to fetch Go $go_version, which builds dcol"
	need_file /etc/ssl/certs/ca-certificates.crt ca-certificates 'to fetch Go modules over HTTPS'
}

# fetch_go fetches Go as a module, as Go 1.21 and later do, into .cache/go, which is first in the
# Makefile's path. It makes a copy, because other users may not be able to read a module cache.
fetch_go() {
	! has_go || return 0
	local arch cache=$root/.cache/go-modules module sum sumdb
	arch=$(cd / && go env GOARCH) # inside the module, go would fetch a newer Go itself
	[[ -n ${go_sum[$arch]-} ]] || die "this machine is $arch, for which scripts/deps.sh knows no Go $go_version" \
		'unpack one from https://go.dev/dl/ to /usr/local/go'
	module=golang.org/toolchain@v0.0.1-go$go_version.linux-$arch
	say "this is $(cd / && go env GOVERSION): fetching Go $go_version as a module, about 70 MB, into .cache/go"
	rm -rf "$cache" "$root/.cache/go"
	mkdir -p "$cache"
	# Without the checksum database, Go 1.21 and later fetch no Go.
	sumdb=$(cd / && go env GOSUMDB)
	[[ $sumdb != off ]] || sumdb=sum.golang.org
	# The caller's flags are for this module only.
	(cd / && GOFLAGS=-modcacherw GOSUMDB=$sumdb GO111MODULE=on GOTOOLCHAIN=local GOMODCACHE=$cache go mod download "$module") ||
		die "could not fetch Go $go_version" \
			'is the Go module proxy reachable? see go env GOPROXY; or unpack https://go.dev/dl/ to /usr/local/go'
	sum=$(sha256sum "$cache/cache/download/golang.org/toolchain/@v/${module#*@}.zip")
	[[ ${sum%% *} == "${go_sum[$arch]}" ]] || {
		rm -rf "$cache"
		die "the Go $go_version that was fetched is not the one wanted: its SHA-256 is ${sum%% *}" \
			"which proxy answered? see go env GOPROXY; or unpack https://go.dev/dl/ to /usr/local/go"
	}
	# Before Go 1.21, the go command unpacks programs without their execute bit.
	chmod a+x "$cache/$module"/bin/* "$cache/$module"/pkg/tool/*/*
	chmod a+rX "$root/.cache"
	chmod -R a+rX "$cache/$module"
	mv "$cache/$module" "$root/.cache/go"
	rm -rf "$cache"
	hash -r
	has_go || die "Go $go_version was fetched, but does not run" "try $root/.cache/go/bin/go version"
}

set_build() { need_go; }
set_demo() {
	set_build
	need_program curl curl 'the client program of the demo'
	need_program nginx nginx 'the server program of the demo'
}
set_bench() {
	set_demo
	need_program tmux tmux 'a terminal for dcol top'
	need_program chromium chromium 'a browser for the page'
	need_program iperf3 iperf3 'the traffic of the benchmarks'
	need_program mtr mtr-tiny 'the program dcol trace is compared with'
	need_program traceroute traceroute 'the program dcol trace is compared with'
	need_program scamper scamper 'the program dcol trace is compared with'
	need_program haproxy haproxy 'the relay dcol is compared with'
	need_program iptables iptables 'the rules dcol is compared with'
	need_program openvpn openvpn 'OpenVPN detours'
	need_program socat socat 'the user-space relay dcol is compared with'
	need_program nft nftables 'the rules dcol is compared with'
}
set_paper() {
	set_build
	need_program iperf3 iperf3 'the traffic of the evaluation'
	need_program openvpn openvpn 'OpenVPN detours'
}
set_test() {
	set_demo
	need_program iperf3 iperf3 'traffic in the lab'
	need_program ip iproute2 'to look at namespaces from outside'
	need_program nft nftables 'to read the nftables rules back'
	need_program sysctl procps 'to compare sysctls before and after'
	need_program conntrack conntrack 'to read tracked connections back'
	need_program tcpdump tcpdump 'to look at packets'
	need_program openvpn openvpn 'OpenVPN detours'
	need_program gcc gcc "the race detector, and a static program for 'dcol run'"
	need_file '/usr/lib/*/libc.a' libc6-dev "the race detector, and a static program for 'dcol run'"
	need_python "programs for 'dcol run'"
	need_program socat socat 'services and senders in the tests'
	need_program miniupnpd miniupnpd-nftables 'the home routers of the tests that open ports'
	need_program chromium chromium 'the browser of the tests of the page'
}
set_nightly_tshark() {
	set_test
	need_program tshark tshark 'the dissectors dcol is compared with'
}
set_nightly_libconvert() {
	set_build
	need_program git git 'to fetch the sources of libconvert'
	need_program cmake cmake 'to build libconvert'
	need_program gcc gcc 'to build libconvert'
	need_program perl perl 'to build libconvert'
	need_program pkg-config pkgconf 'to build libconvert'
	need_program curl curl 'the program that libconvert makes a client'
}
set_recording() {
	set_demo
	need_program tmux tmux 'the terminals'
	need_program chromium chromium 'pictures of the page'
}
set_test_roots() {
	need_program debootstrap debootstrap 'to install bare Debian roots'
	need_program unshare util-linux 'to run in them'
}
set_test_metrics() {
	set_build
	need_program promtool prometheus 'to scrape the metrics and to check the alert rules'
}
set_deb() {
	set_build
	need_program dpkg-deb dpkg 'to build Debian packages'
}
set_test_deb() {
	set_deb
	set_test_roots
	need_program lintian lintian 'to check the packages'
	need_program ip iproute2 'networks of two hosts'
	need_python 'a server for the first detour'
}
set_test_kernels() {
	set_test
	need_program qemu-system-x86_64 qemu-system-x86 'to run other kernels'
	need_file /bin/busybox busybox-static 'the first programs of a guest'
	need_program cpio cpio 'to pack the first file system of a guest'
	need_program modprobe kmod 'to find and load modules of other kernels'
	need_program xz xz-utils 'to unpack modules of other kernels'
}
set_lint() {
	set_build
	need_program shellcheck shellcheck 'to check the scripts'
}
set_generate() {
	set_build
	# The committed objects are made with this version of clang. Others produce different ones.
	need_program clang-14 clang-14 'to compile eBPF; in Debian 12 only'
	need_program llvm-strip-14 llvm-14 'to strip eBPF objects; in Debian 12 only'
	need_file /usr/include/bpf/bpf_helpers.h libbpf-dev 'headers of eBPF programs'
	need_file '/usr/include/*/asm/types.h' linux-libc-dev 'headers of eBPF programs'
}

# restore_services undoes hold_services; also after a run that was killed.
restore_services() {
	if [[ -e $policy.dcol-saved ]]; then
		mv -f "$policy.dcol-saved" "$policy"
	elif grep -qsF "$marker" "$policy"; then
		rm -f "$policy"
	fi
}

# hold_services keeps Debian from starting installed services. The demo starts its own
# nginx inside the lab, and the host must not change.
hold_services() {
	restore_services
	trap restore_services EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	[[ ! -e $policy ]] || mv "$policy" "$policy.dcol-saved"
	printf '#!/bin/sh\n%s\nexit 101\n' "$marker" >"$policy"
	chmod 755 "$policy"
}

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" \
		</dev/null >&2
}
apt_install() { apt install -y --no-install-recommends -o Dpkg::Use-Pty=0 "${packages[@]}"; }

install_packages() {
	[[ ${#packages[@]} -gt 0 ]] || return 0
	local i
	say "this machine lacks, for 'make $1', these packages of Debian:"
	for i in "${!packages[@]}"; do
		printf '  %-16s %s\n' "${packages[i]}" "${reasons[i]}" >&2
	done
	command -v apt-get >/dev/null ||
		die 'this machine has no apt-get' 'install the programs above in the way of your distribution'
	[[ $(id -u) == 0 ]] ||
		die 'only root can install packages' "run this as root: apt-get install ${packages[*]}"
	say 'installing them now; no service is started'
	hold_services
	# Package lists are empty on a fresh machine, and outdated on an old one.
	apt_get_knows || apt update
	apt_install || { apt update && apt_install; } ||
		die 'apt-get could not install the packages' \
			'see its messages above; the lists it uses are in /etc/apt/sources.list*'
	local p
	for p in "${packages[@]}"; do
		# Debian's nginx, HAProxy and Prometheus would start at the next boot. (openvpn starts nothing without a
		# configuration in /etc/openvpn.)
		[[ $p != nginx && $p != haproxy && $p != prometheus ]] || update-rc.d "$p" disable >&2
	done
	restore_services
	trap - EXIT INT TERM HUP
}
apt_get_knows() { apt-get install -s -qq --no-install-recommends "${packages[@]}" >/dev/null 2>&1; }

# go_tool PACKAGE@VERSION builds a Go tool, unless that version exists and was built by
# this Go. (A linter cannot read code newer than its compiler.)
go_tool() {
	local package=${1%@*} version=${1#*@} name have
	name=${package##*/}
	have=$(go version -m "$tools/$name" 2>/dev/null || true)
	if [[ $have == *"$(go env GOVERSION)"* && $have =~ mod[[:space:]][^[:space:]]+[[:space:]]"$version"[[:space:]] ]]; then
		return
	fi
	say "building $name $version into .cache/bin, some minutes the first time"
	mkdir -p "$tools"
	# The caller's flags are for this module only. With -trimpath, as in the Makefile, the standard library that was
	# compiled for dcol serves for the tool, too.
	(cd / && GOFLAGS=-trimpath CGO_ENABLED=0 GOBIN=$tools go install "$package@$version") ||
		die "could not build $name $version" 'is the Go module proxy reachable? see go env GOPROXY'
}

case ${1-} in
build | demo | bench | recording | paper | test | nightly-tshark | nightly-libconvert | test-metrics | test-roots | test-deb | test-kernels | deb | generate)
	"set_${1//-/_}"
	install_packages "$1"
	fetch_go
	[[ $1 != test ]] || go_tool "$gotestsum"
	;;
lint)
	set_lint
	install_packages lint
	fetch_go
	go_tool "$golangci_lint"
	;;
*)
	die "unknown set of needs: '${1-}'" 'usage: scripts/deps.sh build|demo|bench|recording|paper|test|nightly-tshark|nightly-libconvert|test-metrics|test-roots|test-deb|test-kernels|deb|lint|generate'
	;;
esac
