#!/usr/bin/env bash
# The part of test-deb.sh that goes from the package to a first detour, in three commands on alice's host:
#
#   test-deb-first.sh PACKAGE ALICE BOB
#
# ALICE and BOB are bare root directories. Their hosts, and a server on this machine's files, are network namespaces
# round a router. Bob's host has a collective already, and its agent what it would have in a container (docs/containers.md):
# three capabilities, and sysctls that are read-only. It prints how long alice's commands took.
set -euo pipefail
package=$1 alice=$2 bob=$3
work=$(mktemp -d)
here=$(cd "$(dirname "$0")" && pwd)
pids=()

say() { printf 'test-deb: %s\n' "$*" >&2; }
die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}
# shellcheck source=scripts/roots.sh disable=SC1091
. "$here/roots.sh"

# host NAME makes a network namespace, held by a process, and sets pid_NAME.
host() {
	# shellcheck disable=SC2016 # the inner shell expands it
	unshare -nu sh -c 'hostname "$1" && exec sleep 600' - "$1" &
	pids+=("$!")
	printf -v "pid_$1" '%s' "$!"
	for ((i = 0; i < 200; i++)); do
		[[ $(tr '\0' ' ' <"/proc/$!/cmdline") != 'sleep 600 ' ]] || return 0
		sleep 0.05
	done
	die "no namespace for $1"
}

in_net() { nsenter -t "$1" -n "${@:2}"; }

# in_root PID ROOT COMMAND... runs a command in a host's namespaces and root directory. What it starts ends with it.
in_root() {
	local pid=$1 root=$2
	shift 2
	# shellcheck disable=SC2016 # the inner shell expands them
	nsenter -t "$pid" -n -u unshare --pid --fork --kill-child bash -c '. "$1/roots.sh"; shift; inside "$@"' - "$here" "$root" env -i HOME=/root \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb "$@"
}

# clean ends the processes that this script started.
clean() {
	local pid
	for pid in "${pids[@]}"; do
		kill "$pid" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap clean EXIT

say 'a network: alice, bob, a server and a router'
host router
number=1
for name in alice bob server; do
	host "$name"
	pid=pid_$name
	ip link add "v$$$number" type veth peer name eth0 netns "${!pid}"
	# shellcheck disable=SC2154 # host sets it
	ip link set "v$$$number" netns "$pid_router" name "$name"
	in_net "$pid_router" ip addr add "11.$number.0.254/24" dev "$name"
	in_net "$pid_router" ip link set "$name" up
	in_net "${!pid}" ip addr add "11.$number.0.1/24" dev eth0
	in_net "${!pid}" ip link set eth0 up
	in_net "${!pid}" ip link set lo up
	in_net "${!pid}" ip route add default via "11.$number.0.254"
	number=$((number + 1))
done
in_net "$pid_router" sysctl -qw net.ipv4.ip_forward=1

# shells run the commands of one host one after the other, in one mount namespace, so that its agent stays there.
cp "$package" "$bob/root/dcol.deb"
cp "$package" "$alice/root/dcol.deb"
dpkg-deb -x "$package" "$work/server"
truncate -s 3M "$work/big"
# shellcheck disable=SC2154
in_net "$pid_server" "$work/server/usr/bin/dcol" run -- python3 -m http.server 80 --directory "$work" >"$work/server.log" 2>&1 &
pids+=("$!")

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

say "alice: apt install, dcol join, dcol run"
grep -o 'dcol1-[^ ]*' "$bob/root/invitation" | head -n 1 >"$alice/root/invitation"
cat >"$alice/root/first" <<'END'
set -e
begin=$(date +%s%N)
apt-get install -y /root/dcol.deb
dcol join "$(cat /root/invitation)"
dcol run -- bash -c 'exec 3<>/dev/tcp/11.3.0.1/80; printf "GET /big HTTP/1.0\r\n\r\n" >&3; head -c 1000 <&3 >/dev/null
	for ((i = 0; i < 600; i++)); do
		if dcol status -d | grep -E "(in-band|mapped) .*bob" >/root/detour; then exit 0; fi
		sleep 0.1
	done
	dcol status -d
	exit 1'
echo "$((($(date +%s%N) - begin) / 1000000))" >/root/took
dcol down
END
# shellcheck disable=SC2154
in_root "$pid_alice" "$alice" bash /root/first >"$work/alice.log" 2>&1 || {
	tail -n 40 "$work/alice.log" "$work/bob.log" >&2
	die 'alice has no detour'
}
took=$(cat "$alice/root/took")
cat "$alice/root/detour" >&2
say "from apt install to a first detour: $took ms"
((took < 60000)) || die "that is more than a minute"
echo go >"$bob/root/go"
wait "$bobs" || { cat "$work/bob.log" >&2; die "bob's agent ended with an error"; }
