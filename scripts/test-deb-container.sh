#!/usr/bin/env bash
# The part of test-deb.sh that builds the image of packaging/container and runs it as a waypoint:
#
#   test-deb-container.sh PACKAGE BASE ALICE BOB
#
# BASE is an archive of a root directory. It stands for the image that the recipe begins with, so that no registry is needed.
# ALICE and BOB are bare root directories, whose systemd runs in namespaces of this machine (lib/hosts.sh). Alice makes a
# collective. On bob, which has Podman and no dcol, the commands of docs/containers.md run as they stand there. A
# connection of alice must then take an in-band detour through the container, also after the container's restart, and
# nothing of dcol may be left in bob's network at the end.
set -euo pipefail
package=$1 base=$2 alice=$3 bob=$4

# shellcheck source=scripts/lib/hosts.sh disable=SC1091
. "$(dirname "$0")/lib/hosts.sh"
sources=$(cd "$scripts/.." && pwd)

# commands N prints the N-th block of commands that docs/containers.md has on containers.
commands() {
	awk -v wanted="$1" '
		/^## / { here = ($0 == "## A container") }
		here && /^```/ { inside = !inside; number += inside; next }
		here && inside && number == wanted' "$sources/docs/containers.md"
}

# subflow prints alice's port of the subflow through bob, and the bytes that came over it.
subflow() {
	in_host alice ss -tniHO state established dst 11.2.0.1 and dport = :80 </dev/null |
		sed -nE 's/^.*11\.1\.0\.1:([0-9]+).*bytes_received:([0-9]+).*$/\1 \2/p' | head -n 1
}

say 'bob gets Podman'
cp -L /etc/resolv.conf "$bob/etc/"
inside "$bob" "${clean_env[@]}" DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update && apt-get install -y --no-install-recommends podman buildah crun netavark nftables' \
	>"$work/podman.log" 2>&1 </dev/null || { cat "$work/podman.log" >&2; die 'Podman cannot be installed'; }
# A container's limits cannot be above this machine's, unless it has CAP_SYS_RESOURCE. Bob's systemd has neither D-Bus nor
# cgroup controllers.
printf '[containers]\npids_limit = 0\ndefault_ulimits = ["nofile=%s:%s", "nproc=%s:%s"]\n[engine]\ncgroup_manager = "cgroupfs"\n' \
	"$(ulimit -Hn)" "$(ulimit -Hn)" "$(ulimit -Hu)" "$(ulimit -Hu)" >"$bob/etc/containers/containers.conf"
mkdir -p "$bob/root/dcol/out/deb" "$bob/root/dcol/packaging"
cp "$package" "$bob/root/dcol/out/deb/"
cp -r "$sources/packaging/container" "$bob/root/dcol/packaging/"
cp "$base" "$bob/root/base.tar"

say 'the image is built'
image=$(awk '$1 == "FROM" { print $2 }' "$sources/packaging/container/Containerfile")
cat >"$bob/root/build" <<END_OF_BUILD
set -e
cd /root/dcol
export BUILDAH_ISOLATION=chroot
podman import /root/base.tar $image
make() { :; } # the package is there
$(commands 1 | sed "s/_amd64/_$(dpkg --print-architecture)/")
END_OF_BUILD
inside "$bob" "${clean_env[@]}" bash /root/build >"$work/build.log" 2>&1 </dev/null || { cat "$work/build.log" >&2; die 'the image cannot be built'; }

network
truncate -s 1G "$work/big"
serve "$package" "$work"

say 'alice makes a collective'
cp "$package" "$alice/root/dcol.deb"
boot alice "$alice"
run_on alice dpkg -i /root/dcol.deb
run_on alice dcol init friends --address 11.1.0.1
invitation=$(in_host alice dcol invite 2>/dev/null </dev/null | grep -o 'dcol1-[^ ]*' | head -n 1)

say 'bob joins in a container, and runs it'
boot bob "$bob"
for block in 2 3 4; do
	commands "$block" | sed "s/dcol1-\.\.\./$invitation/"
done | sed 's/^podman exec.*/for ((i = 0; i < 300; i++)); do ! & >\/dev\/null 2>\&1 || break; sleep 0.1; done; &/' >"$bob/root/waypoint"
run_on bob bash -e /root/waypoint
grep -q 'bob (waypoint)' "$work/bob.log" || { cat "$work/bob.log" >&2; die 'bob is no waypoint'; }
run_on bob nft list ruleset
grep -q 'table .* dcol' "$work/bob.log" || { cat "$work/bob.log" >&2; die "bob's kernel has no table of dcol"; }

say 'alice downloads, 8 Mbit/s directly and 12 Mbit/s through bob'
# shellcheck disable=SC2154
in_net "$pid_router" sh -ec '
	tc qdisc add dev alice root handle 1: htb default 1
	tc class add dev alice parent 1: classid 1:1 htb rate 8mbit
	tc class add dev alice parent 1: classid 1:2 htb rate 12mbit
	tc filter add dev alice parent 1: protocol ip u32 match ip src 11.2.0.1/32 flowid 1:2'
for ((i = 0; i < 600; i++)); do
	run_on alice dcol status
	! grep -qE '^ +bob .* up .* in-band, mapped$' "$work/alice.log" || break
	sleep 0.1
done
((i < 600)) || { cat "$work/alice.log" >&2; die 'alice has no in-band detours through bob'; }
# shellcheck disable=SC2016 # the inner shell expands it
in_host alice dcol run -- bash -c 'exec 3<>/dev/tcp/11.3.0.1/80; printf "GET /big HTTP/1.0\r\n\r\n" >&3; cat <&3 >/dev/null' </dev/null &
pids+=("$!")
disown
for ((i = 0; i < 600; i++)); do
	read -r port bytes < <(subflow) || true
	((${bytes:-0} < 3000000)) || break
	sleep 0.1
done
((${bytes:-0} >= 3000000)) || { in_host alice dcol status -d >&2 </dev/null || true; die 'alice has no detour'; }
run_on alice dcol status -d
grep -E 'in-band.*bob' "$work/alice.log" >&2 || { cat "$work/alice.log" >&2; die 'the detour is not in-band'; }

say 'the container restarts'
run_on bob podman restart dcol
read -r same before < <(subflow) || die "the restart ended alice's subflow"
for ((i = 0; i < 300; i++)); do
	sleep 0.1
	! in_host bob podman exec dcol dcol status >"$work/status" 2>&1 </dev/null || break
done
((i < 300)) || { cat "$work/status" >&2; die 'the agent does not answer after the restart'; }
read -r same after < <(subflow) || die "the restart ended alice's subflow"
[[ $same == "$port" ]] || die "alice's subflow is another one: port $same, not $port"
((after > before)) || die "nothing came over alice's subflow after the restart"
say "port $port: $before bytes at the restart, $after when the agent answered again"

say 'bob removes it'
{ commands 3 | sed '/^dcol_once /d'; commands 5; } >"$bob/root/remove"
run_on bob bash -e /root/remove
run_on bob nft list ruleset
! grep 'table .* dcol' "$work/bob.log" >&2 || die "bob's kernel still has tables of dcol"
