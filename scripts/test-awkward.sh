#!/usr/bin/env bash
# Runs the tests on a host made awkward on purpose (root):
#
#   scripts/test-awkward.sh [go test's arguments]     such as -run TestRecord ./internal/netstate
#
# The host is a network namespace with forwarding on, strict reverse-path
# filtering, no IPv6 for new interfaces, foreign nftables and routing rules, BBR as
# the default congestion control, and an address that its programs' own networks
# overlap. Programs run with umask 077, in a time zone of 5 h 45 min, beside
# processes that keep every processor busy.
#
# Network namespaces inherit their defaults from the machine's. So two sysctls of the
# machine itself change while the tests run, and are put back: net.core.devconf_inherit_init_net
# and net.ipv4.tcp_congestion_control.
set -euo pipefail
cd "$(dirname "$0")/.."

inherit=/proc/sys/net/core/devconf_inherit_init_net
congestion=/proc/sys/net/ipv4/tcp_congestion_control

die() {
	printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
	exit 1
}

# host makes this process's network namespace awkward.
host() {
	ip link set lo up
	ip link add lan0 type veth peer name lan1
	ip address add 10.0.0.7/8 dev lan0
	ip link set lan0 up
	ip link set lan1 up
	ip rule add priority 100 fwmark 0x80000/0xff0000 lookup 52
	ip rule add priority 200 from 192.0.2.0/24 lookup 100
	sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
		net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1 \
		net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
	nft -f - <<-'RULES'
		table inet filter {
			chain input { type filter hook input priority filter; policy accept; ct state invalid drop; }
			chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; }
		}
		table ip nat {
			chain postrouting { type nat hook postrouting priority srcnat; oifname "lan0" masquerade; }
		}
	RULES
}

busy=()
end() {
	[[ ${#busy[@]} == 0 ]] || kill "${busy[@]}" 2>/dev/null || true
	echo "$had_inherit" >$inherit
	echo "$had_congestion" >$congestion
}

if [[ ${1-} == --inside ]]; then
	shift
	host
	umask 077
	export TZ=Asia/Kathmandu CGO_ENABLED=1
	exec go test -race -count=1 -timeout=20m "$@"
fi

[[ $(id -u) == 0 ]] || die 'only root can make network namespaces' 'run this as root'
had_inherit=$(<$inherit)
had_congestion=$(<$congestion)
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
go mod download # the namespace reaches no proxy
modprobe -q tcp_bbr 2>/dev/null || true
echo bbr >$congestion 2>/dev/null || printf 'test-awkward: this kernel has no bbr; the default stays %s\n' "$had_congestion" >&2
echo 3 >$inherit
for ((i = $(nproc); i > 0; i--)); do
	nice sh -c 'while :; do :; done' &
	busy+=($!)
done
[[ $# -gt 0 ]] || set -- ./...
unshare --net "$0" --inside "$@"
