#!/usr/bin/env bash
# The part of test-deb.sh that goes from the package to a first detour, in three commands on alice's host:
#
#   test-deb-first.sh PACKAGE ALICE BOB
#
# ALICE and BOB are bare root directories. Their hosts, and a server on this machine's files, are network namespaces
# round a router. Bob's host has a collective already, and its agent what it would have in a container (docs/containers.md):
# three capabilities, and sysctls that are read-only. It prints how long each of alice's commands took.
set -euo pipefail
package=$1 alice=$2 bob=$3

# shellcheck source=scripts/lib/hosts.sh disable=SC1091
. "$(dirname "$0")/lib/hosts.sh"
network

# One script runs all commands of a host, in one mount namespace, so that its agent stays there.
cp "$package" "$bob/root/dcol.deb"
cp "$package" "$alice/root/dcol.deb"
truncate -s 3M "$work/big"
serve "$package" "$work"

say 'bob has a collective'
mkfifo "$bob/root/go"
cat >"$bob/root/serve" <<'END'
set -e
dpkg -i /root/dcol.deb >/dev/null
dcol init friends --no-start --address 11.2.0.1
dcol config set roles '["coordinator", "waypoint"]'
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
setpriv --bounding-set -all,+net_admin,+bpf,+net_raw --inh-caps -all dcol agent &
agent=$!
for ((i = 0; i < 300; i++)); do
	! dcol status >/root/status || break
	sleep 0.1
done
dcol status
dcol invite >/root/invitation
echo ready >/root/ready
cat /root/go >/dev/null
kill "$agent"
wait "$agent"
END
# shellcheck disable=SC2154
in_net "$pid_bob" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.netfilter.nf_conntrack_acct=1
in_root "$pid_bob" "$bob" bash /root/serve >"$work/bob.log" 2>&1 &
bobs=$!
for ((i = 0; i < 1200; i++)); do
	[[ ! -s $bob/root/ready ]] || break
	kill -0 "$bobs" 2>/dev/null || { cat "$work/bob.log" >&2; die 'bob has no collective'; }
	sleep 0.1
done

say 'alice: apt install, dcol join, dcol run'
grep -o 'dcol1-[^ ]*' "$bob/root/invitation" | head -n 1 >"$alice/root/invitation"
cat >"$alice/root/first" <<'END'
set -e
passed() { echo "$1 $(date +%s%N)" >>/root/passed; }
passed begin
apt-get install -y /root/dcol.deb
passed 'apt install'
dcol join "$(cat /root/invitation)"
passed 'dcol join'
dcol run -- bash -c 'exec 3<>/dev/tcp/11.3.0.1/80; printf "GET /big HTTP/1.0\r\n\r\n" >&3; head -c 1000 <&3 >/dev/null
	for ((i = 0; i < 600; i++)); do
		if ss -tniHO state established dst 11.2.0.1 | grep -F mptcp >/root/subflow; then exit 0; fi
		sleep 0.05
	done
	dcol status -d
	exit 1'
passed 'dcol run until a subflow through bob'
dcol down
END
# shellcheck disable=SC2154
in_root "$pid_alice" "$alice" bash /root/first >"$work/alice.log" 2>&1 || {
	tail -n 40 "$work/alice.log" "$work/bob.log" >&2
	die 'alice has no detour'
}
awk '{ at = $NF; $NF = "" }
	NR == 1 { first = at }
	NR > 1 { printf "test-deb: %s took %.2f s\n", substr($0, 1, length($0) - 1), (at - last) / 1e9 }
	{ last = at }
	END { printf "test-deb: from apt install to a first detour: %.2f s\n", (last - first) / 1e9 }' "$alice/root/passed" >&2
echo go >"$bob/root/go"
wait "$bobs" || { cat "$work/bob.log" >&2; die "bob's agent ended with an error"; }
