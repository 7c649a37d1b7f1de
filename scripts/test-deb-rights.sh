#!/usr/bin/env bash
# The part of test-deb.sh in which systemd's agents, as their unit confines them, have all that needs rights:
#
#   test-deb-rights.sh PACKAGE ALICE BOB
#
# ALICE and BOB are bare root directories, whose systemd runs in namespaces of this machine (lib/hosts.sh). Bob makes a
# collective and is a converter; alice joins, and is the gateway of carol, a host behind her. No agent may report a problem, or
# log that something was not permitted. Then alice's agent gets CAP_PERFMON by the drop-in of docs/security.md, and a congestion
# control of dcol.
#
# Not shown: client.mptcpify, which some kernels refuse to root, too.
set -euo pipefail
package=$1 alice=$2
# shellcheck disable=SC2034 # "${!name}" uses it
bob=$3

# shellcheck source=scripts/lib/hosts.sh disable=SC1091
. "$(dirname "$0")/lib/hosts.sh"
network
host carol
# shellcheck disable=SC2154 # host sets them
ip link add "v$$" type veth peer name eth0 netns "$pid_carol"
# shellcheck disable=SC2154
ip link set "v$$" netns "$pid_alice" name lan
in_net "$pid_alice" ip addr add 10.9.0.1/24 dev lan
in_net "$pid_alice" ip link set lan up
in_net "$pid_carol" ip addr add 10.9.0.2/24 dev eth0
in_net "$pid_carol" ip link set eth0 up
in_net "$pid_carol" ip route add default via 10.9.0.1
in_net "$pid_alice" sysctl -qw net.ipv4.ip_forward=1

# A server without MPTCP.
echo served >"$work/file"
# shellcheck disable=SC2154
nsenter -t "$pid_server" -n python3 -m http.server 80 --directory "$work" >"$work/server.log" 2>&1 &
pids+=("$!")
disown

# await WHAT COMMAND... waits until a command succeeds.
await() {
	for ((i = 0; i < 600; i++)); do
		! "${@:2}" >/dev/null 2>&1 || return 0
		sleep 0.1
	done
	for name in alice bob; do
		in_host "$name" dcol status >&2 </dev/null || true
		in_host "$name" journalctl --no-pager -u dcol -n 40 >&2 </dev/null || true
	done
	die "$1: not after a minute"
}

# status HOST EXPRESSION evaluates an expression of Python about the status s of a host's agent.
status() {
	in_host "$1" dcol status --json </dev/null | python3 -c 'import json, sys
s = json.load(sys.stdin)
relay = {p["name"]: p for p in (s.get("relay") or {}).get("parts", [])}
kinds = {k["kind"] for w in s.get("client", {}).get("waypoints", []) for k in w["kinds"] if k["state"] == "ready"}
sys.exit(not eval(sys.argv[1]))' "$2"
}

# unhindered HOST checks that its agent has no problem, and was refused nothing. The routing rules of tunnels and of the gateway
# pass by a router's choices.
unhindered() {
	status "$1" 'all(p.startswith("routing rules lead packets") for p in s["problems"])' || { in_host "$1" dcol status >&2 </dev/null; die "the agent of $1 has problems"; }
	! in_host "$1" journalctl --no-pager -u dcol </dev/null | grep -iE 'not permitted|permission denied|level=ERROR' >&2 ||
		die "the agent of $1 was refused something"
}

say 'both get OpenVPN'
for name in alice bob; do
	inside "${!name}" "${clean_env[@]}" DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update && apt-get install -y --no-install-recommends openvpn' \
		>"$work/openvpn.log" 2>&1 </dev/null || { cat "$work/openvpn.log" >&2; die 'OpenVPN cannot be installed'; }
done

say 'systemd boots on alice and bob; bob makes a collective, and alice joins'
for name in alice bob; do
	cp "$package" "${!name}/root/dcol.deb"
	boot "$name" "${!name}"
	run_on "$name" dpkg -i /root/dcol.deb
done
run_on bob dcol init friends --address 11.2.0.1
invitation=$(in_host bob dcol invite 2>/dev/null </dev/null | grep -o 'dcol1-[^ ]*' | head -n 1)
run_on alice dcol join "$invitation"

say 'both get all that needs rights'
for setting in 'waypoint.offers ["in-band", "mapped", "wireguard", "openvpn", "converter"]' 'waypoint.converter_port 443' 'waypoint.converter_incoming ["80"]' \
	'waypoint.bandwidth_per_member "800mbit"' 'trace.vantage_point true' 'metrics.listen "127.0.0.1:99"'; do
	run_on bob dcol config set "${setting%% *}" "${setting#* }"
done
for setting in 'client.converter.use "always"' 'client.converter.capture "host"' 'client.converter.gateway ["lan"]' \
	'client.converter.proxy "127.0.0.1:108"' 'client.converter.exclude_domains ["excluded.example"]' 'client.inactivity_timeout "2m"' \
	'trace.probe true' 'options.ask.user_timeout "30s"' 'options.accept.congestion ["reno"]'; do
	run_on alice dcol config set "${setting%% *}" "${setting#* }"
done
umask 077
echo 'a secret of routers and sources' >"$alice/etc/dcol/cflb-secret"
sed -i 's/^roles .*/roles = ["client", "waypoint", "router"]/' "$alice/etc/dcol/dcol.toml"
cat >>"$alice/etc/dcol/dcol.toml" <<'END_OF_TABLES'

[[client.converter.incoming]]
converter = "bob"
port      = 80
to        = "127.0.0.1:80"

[[policy]]
use          = "paths"
detours      = true
user_timeout = "30s"
limit        = { bob = "100mbit" }

[[congestion]]
use = "reno"
END_OF_TABLES
umask 022
for name in bob alice; do
	run_on "$name" dcol config check
	run_on "$name" systemctl restart dcol
	await "the agent of $name answers" in_host "$name" dcol status
done

await 'all kinds of detours are ready' status alice 'kinds >= {"in-band", "mapped", "wireguard", "openvpn"}'
await "bob's converter listens" status bob 'relay["converter"]["listen"] and relay["incoming at 80 for alice"]["listen"]'
await "alice's relay listens" status alice 'all(relay[x]["listen"] for x in ("proxy", "gateway, IPv4", "programs, IPv4", "incoming"))'

# get ADDRESS fetches the file, on the host on which it is evaluated.
# shellcheck disable=SC2016 # the inner shell expands it
get='get() { exec 3<>"/dev/tcp/$1/80" && printf "GET /file HTTP/1.0\r\n\r\n" >&3 && timeout 5 grep -qx served <&3; }'

say "a program of alice's, carol, and a caller of alice's service, by way of bob"
captured() { in_host alice bash -c "$get; get 11.3.0.1" </dev/null && status alice 'relay["programs, IPv4"]["accepted"] > 0'; }
await "a program's connection is captured" captured
diverted() { in_net "$pid_carol" bash -c "$get; get 11.3.0.1" && status alice 'relay["gateway, IPv4"]["accepted"] > 0'; }
await "carol's connection is converted" diverted
nsenter -t "$pid_alice" -n python3 -m http.server 80 --bind 127.0.0.1 --directory "$work" >>"$work/server.log" 2>&1 &
pids+=("$!")
disown
# shellcheck disable=SC2154
await "alice's service is reached at bob's" in_net "$pid_server" bash -c "$get; get 11.2.0.1"
# shellcheck disable=SC2016 # the inner shell expands it
run_on bob bash -c 'exec 3<>/dev/tcp/127.0.0.1/99 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && grep -q ^dcol_ <&3'
for command in 'cc list' 'option list' 'history' 'web' 'web --stop' 'why 11.3.0.1' waypoint 'log show' 'convert'; do
	# shellcheck disable=SC2086 # words
	run_on alice dcol $command
done
unhindered alice
unhindered bob

say 'alice lets her agent have CAP_PERFMON'
mkdir -p "$alice/etc/systemd/system/dcol.service.d"
# shellcheck disable=SC2016 # these are Markdown's backquotes
sed -n '/^### CAP_PERFMON/,/^###* [^C]/{/^```ini/,/^```/{/^```/!p}}' "$scripts/../docs/security.md" >"$alice/etc/systemd/system/dcol.service.d/perfmon.conf"
sed -i 's/^use = "reno"/use = "lia"/' "$alice/etc/dcol/dcol.toml"
run_on alice systemctl daemon-reload
run_on alice systemctl restart dcol
await 'the agent of alice answers' in_host alice dcol status
unhindered alice
run_on alice dcol down
run_on bob dcol down
