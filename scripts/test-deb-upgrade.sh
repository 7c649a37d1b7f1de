#!/usr/bin/env bash
# The part of test-deb.sh that upgrades the package in mid-download, with systemd:
#
#   test-deb-upgrade.sh OLD NEW ALICE BOB
#
# OLD and NEW are packages, ALICE and BOB bare root directories, whose systemd runs in namespaces of this machine (lib/hosts.sh). Bob
# makes a collective, alice joins. She downloads a file over both paths, the direct one and that through bob, while dpkg upgrades
# her package, and then bob's. The file must be whole, no pause as long as a second, and both agents of the new version. Alice's
# agent is root's at first, as in packages of old. Both agents must be the user dcol's then, and the files of the agent, too,
# whatever root does.
#
# Not shown: a reboot, and other kernels than this machine's.
set -euo pipefail
old=$1 new=$2 alice=$3
# shellcheck disable=SC2034 # "${!name}" uses it
bob=$4

# shellcheck source=scripts/lib/hosts.sh disable=SC1091
. "$(dirname "$0")/lib/hosts.sh"
network
# The server's packets to alice pass 24 Mbit/s, those by way of bob 12 Mbit/s of them.
# shellcheck disable=SC2154
in_net "$pid_router" tc qdisc add dev alice root tbf rate 24mbit burst 32k latency 60ms
in_net "$pid_router" tc qdisc add dev bob root tbf rate 12mbit burst 32k latency 60ms

size=50000000
head -c "$size" /dev/urandom >"$work/big"
serve "$new" "$work"

say 'systemd boots on alice and bob, with the old package'
for name in alice bob; do
	cp "$old" "${!name}/root/old.deb"
	cp "$new" "${!name}/root/new.deb"
	boot "$name" "${!name}"
	run_on "$name" dpkg -i /root/old.deb
done

mkdir -p "$alice/etc/systemd/system/dcol.service.d"
printf '[Service]\nUser=root\nAmbientCapabilities=\nExecStartPre=\n' >"$alice/etc/systemd/system/dcol.service.d/root.conf"
run_on alice systemctl daemon-reload
run_on bob dcol init friends --address 11.2.0.1
invitation=$(in_host bob dcol invite 2>/dev/null | grep -o 'dcol1-[^ ]*' | head -n 1)
run_on alice dcol join "$invitation"

# agent HOST prints the process of its agent.
agent() { in_host "$1" systemctl show --property MainPID --value dcol.service; }

# user HOST prints the user of its agent.
user() { in_host "$1" stat -c %U "/proc/$(agent "$1")"; }

# owned HOST checks that the agent and its files are the user dcol's.
owned() {
	[[ $(user "$1") == dcol ]] || die "the agent of $1 is $(user "$1")'s"
	in_host "$1" find /var/lib/dcol /run/dcol ! -user dcol >"$work/$1.log" 2>&1
	[[ ! -s $work/$1.log ]] || { cat "$work/$1.log" >&2; die "these files of $1's agent are not its own"; }
}
[[ $(user alice) == root ]] || die "the agent of alice is $(user alice)'s"
owned bob

cat >"$alice/root/download" <<'END_OF_DOWNLOAD'
use strict; use IO::Socket::INET; use Time::HiRes 'time';
my $server = IO::Socket::INET->new(PeerAddr => '11.3.0.1:80', Timeout => 10) or die "connect: $!";
print $server "GET /big HTTP/1.0\r\n\r\n";
open(my $file, '>', '/root/big') or die "$!";
my ($head, $last, $longest, $when, $bytes, $begin) = ('', time, 0, 0, 0, time);
while (1) {
	my $n = sysread($server, my $data, 65536);
	die "read: $!" unless defined $n;
	last unless $n;
	my $now = time;
	($longest, $when) = ($now - $last, $now - $begin) if $now - $last > $longest;
	$last = $now;
	if (defined $head) {
		$head .= $data;
		next unless $head =~ s/^.*?\r\n\r\n//s;
		$data = $head; undef $head;
	}
	syswrite($file, $data); $bytes += length $data;
}
printf "%d %.0f %.0f %.0f\n", $bytes, 1000 * $longest, 1000 * $when, 1000 * (time - $begin);
END_OF_DOWNLOAD

say 'alice downloads'
in_host alice dcol run -- perl /root/download >"$work/download" 2>"$work/download.log" &
download=$!
for ((i = 0; i < 100; i++)); do
	! in_host alice dcol status | grep -q 'via bob' || break
	sleep 0.1
done
((i < 100)) || die 'the download has no detour'
rm -r "$alice/etc/systemd/system/dcol.service.d"
for name in alice bob; do
	sleep 3
	before=$(agent "$name")
	begin=$(date +%s%N)
	run_on "$name" dpkg -i /root/new.deb
	kill -0 "$download" 2>/dev/null || die "the download ended before $name was upgraded"
	after=$(agent "$name")
	[[ $after != "$before" && $after != 0 ]] || die "dpkg did not restart the agent of $name ($before, now $after)"
	say "$name: dpkg took $((($(date +%s%N) - begin) / 1000000)) ms, the agent's process was $before and is $after"
done
wait "$download" || { cat "$work/download.log" >&2; die 'the download failed'; }
read -r bytes longest when took <"$work/download"
say "$bytes bytes in $took ms; the longest pause took $longest ms, and ended at $when ms"
[[ $(sha256sum <"$work/big") == "$(sha256sum <"$alice/root/big")" ]] || die "the file is not whole: $bytes of $size bytes"
((longest < 1000)) || die 'that is a second or more'
version=$(dpkg-deb --field "$new" Version)
for name in alice bob; do
	run_on "$name" systemctl is-active dcol.service
	owned "$name"
	run_on "$name" dcol status
	grep -qF "dcol $version" "$work/$name.log" || die "the agent of $name is not of version $version: $(head -n 1 "$work/$name.log")"
done
say "alice's root changes the configuration, stops and starts the agent, leaves and joins again; bob's makes a certificate"
run_on alice dcol config set client.subflows 3
run_on alice dcol reload
run_on alice dcol down
run_on alice dcol up
owned alice
run_on alice dcol leave
run_on bob dcol ca issue carol --valid 24h --dir /var/lib/dcol/coordinator/ca
owned bob
invitation=$(in_host bob dcol invite 2>/dev/null | grep -o 'dcol1-[^ ]*' | head -n 1)
run_on alice dcol join "$invitation" --name dora
owned alice
say 'an agent that root starts by hand leaves files for the next one'
run_on alice systemctl stop dcol.service
# shellcheck disable=SC2016 # the inner shell expands it
run_on alice sh -c 'dcol agent --log /var/lib/dcol/by-hand.log & for i in $(seq 100); do ! dcol status >/dev/null 2>&1 || break; sleep 0.1; done; dcol status && kill $! && wait $!'
run_on alice systemctl start dcol.service
run_on alice dcol up
owned alice
say 'alice removes the package'
run_on alice dpkg -r dcol
! in_host alice systemctl is-active --quiet dcol.service || die "the removal left alice's agent running"
