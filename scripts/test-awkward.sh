#!/usr/bin/env bash
# Runs the tests on a host with unusual settings (root):
#
#   scripts/test-awkward.sh [go test's arguments]     such as -run TestRecord ./internal/kernel/netstate
#
# The host is a network namespace with forwarding on, strict reverse-path
# filtering, no IPv6 for new interfaces, foreign nftables and routing rules, BBR as
# the default congestion control, and an address that its programs' own networks
# overlap. Programs run with umask 077, in a time zone of 5 h 45 min, beside
# processes that keep every processor busy.
#
# Network namespaces inherit defaults from the machine. So two sysctls of the machine
# itself change while the tests run: net.core.devconf_inherit_init_net and
# net.ipv4.tcp_congestion_control. They are restored, even if this script is killed.
#
# The output goes to out/awkward.log. It ends with the list of skipped tests, in case
# the settings keep tests from running.
set -euo pipefail
cd "$(dirname "$0")/.."

sysctls=(/proc/sys/net/core/devconf_inherit_init_net /proc/sys/net/ipv4/tcp_congestion_control)
record=/run/dcol-test-awkward # as long-lived as the sysctls: until the next boot

# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh

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

# restore restores the recorded sysctls.
restore() {
	local value file
	[[ -e $record ]] || return 0
	while read -r file value; do
		echo "$value" >"$file"
	done <"$record"
	rm -f "$record"
}

# busy keeps a processor busy, at the priority of the tests, until the process ends.
busy() {
	local i
	while kill -0 "$1" 2>/dev/null; do
		for ((i = 0; i < 100000; i++)); do :; done
	done
}

# keep restores the sysctls if the process exits without doing so. It holds the lock as well until
# then, so that it never uses the record of a later run.
keep() {
	trap '' INT TERM HUP
	while kill -0 "$1" 2>/dev/null; do sleep 1; done
	restore
}

# summary reads the output of go test -v. It prints the results of packages and failed tests, then the
# skipped tests with their reasons.
summary() {
	awk '
		/^=== (RUN|NAME|CONT)/ { test = $3 }
		/^ +[a-z0-9_]+\.go:[0-9]+: / { said[test] = $0; sub(/^ +/, "", said[test]) }
		/^ *--- SKIP: / { skipped[++skips] = $3 ": " said[$3] }
		/^ *--- PASS: / { passed++ }
		/^(ok|FAIL|panic:|WARNING: DATA RACE)/ || /^ *--- FAIL: / { print; fflush() }
		END {
			printf "%d tests passed, %d skipped\n", passed, skips
			for (i = 1; i <= skips; i++) print "  " skipped[i]
		}'
}

if [[ ${1-} == --inside ]]; then
	shift
	host
	umask 077
	export TZ=Asia/Kathmandu CGO_ENABLED=1
	exec go test -race -count=1 -timeout=20m -v "$@"
fi

[[ $(id -u) == 0 ]] || die 'only root can make network namespaces' 'run this as root'
exec 9>"$record.lock"
flock -w 5 9 || die 'another test-awkward runs on this machine' 'wait for its end'
restore # after a run that was killed together with its keeper
go mod download # the namespace reaches no proxy
modprobe -q tcp_bbr 2>/dev/null || true
for file in "${sysctls[@]}"; do
	printf '%s %s\n' "$file" "$(<"$file")"
done >"$record.new"
mv "$record.new" "$record"
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
keep $$ &
echo 3 >"${sysctls[0]}"
echo bbr >"${sysctls[1]}" 2>/dev/null || say "this kernel has no bbr; the default stays $(<"${sysctls[1]}")"
for ((i = $(nproc); i > 0; i--)); do
	busy $$ 9>&- &
done
[[ $# -gt 0 ]] || set -- ./...
mkdir -p out
unshare --net "$0" --inside "$@" 2>&1 9>&- | tee out/awkward.log | summary
