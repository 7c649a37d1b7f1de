# shellcheck shell=bash
# Hosts in bare root directories, for the parts of test-deb.sh that need a network: first, upgrade, rights and container.
# They source this file first. When they end, their hosts end, too, and $work is removed.

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib/messages.sh disable=SC1091
. "$scripts/lib/messages.sh"
# shellcheck source=scripts/lib/roots.sh disable=SC1091
. "$scripts/lib/roots.sh"
speaker=test-deb
work=$(mktemp -d) # for the script's own files
pids=()           # processes to end
groups=()         # control groups to remove
trap 'clean_hosts; rm -rf "$work"' EXIT

# host NAME makes a network namespace, held by a process, and sets pid_NAME.
host() {
	# shellcheck disable=SC2016 # the inner shell expands it
	unshare -nu sh -c 'hostname "$1" && exec sleep 900' - "$1" &
	pids+=("$!")
	disown # bash reports no end of it
	printf -v "pid_$1" '%s' "$!"
	for ((i = 0; i < 200; i++)); do
		[[ $(tr '\0' ' ' <"/proc/$!/cmdline") != 'sleep 900 ' ]] || return 0
		sleep 0.05
	done
	die "no namespace for $1"
}

# network makes alice (11.1.0.1), bob (11.2.0.1) and a server (11.3.0.1) round a router.
network() {
	say 'a network: alice, bob, a server and a router'
	host router
	local number=1 name pid
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
}

# serve PACKAGE FOLDER serves a folder by HTTP at the host server's port 80, over MPTCP, by the package's dcol.
serve() {
	dpkg-deb -x "$1" "$2/server"
	# nsenter becomes the server, so that clean_hosts ends it. A function would have it as a child.
	# shellcheck disable=SC2154 # host sets it
	nsenter -t "$pid_server" -n "$2/server/usr/bin/dcol" run -- python3 -m http.server 80 --directory "$2" >"$2/server.log" 2>&1 &
	pids+=("$!")
	disown
}

in_net() { nsenter -t "$1" -n "${@:2}"; }

# clean_env has what commands in a root directory get.
clean_env=(env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb)

# in_root PID ROOT COMMAND... runs a command in a host's namespaces and root directory. What it starts ends with it.
in_root() {
	local pid=$1 root=$2
	shift 2
	# shellcheck disable=SC2016 # the inner shell expands them
	nsenter -t "$pid" -n -u unshare --pid --fork --kill-child bash -c '. "$1/lib/roots.sh"; shift; inside "$@"' - "$scripts" "$root" "${clean_env[@]}" "$@"
}

# boot NAME ROOT boots the root directory's systemd in a host's namespaces, with a control group and devices of its own,
# and sets init_NAME to its process. It starts no service but systemd's journal. What would change the machine, such as its
# sysctls outside of net, is read-only, and the capabilities for it are missing.
boot() {
	local name=$1 root=$2 pid=pid_$1 group unit process
	group=$(findmnt -t cgroup2 -n -o TARGET | head -n 1)
	[[ -n $group ]] || die 'this machine has no cgroup v2'
	group=$group/dcol-test-deb-$$-$name
	mkdir "$group" "$group/commands"
	groups+=("$group")
	printf -v "group_$name" '%s' "$group"
	for unit in systemd-{sysctl,modules-load,random-seed,update-utmp,binfmt,hwdb-update,udevd,udev-trigger,tmpfiles-setup-dev,remount-fs,firstboot,timesyncd}.service \
		systemd-udevd-{control,kernel}.socket kmod-static-nodes.service networking.service dev-{hugepages,mqueue}.mount sys-{fs-fuse-connections,kernel-config,kernel-debug,kernel-tracing}.mount; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
	printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' >"$root/etc/systemd/system/test.target"
	printf '%s\n' "$name" >"$root/etc/hostname"
	"$scripts/boot.sh" "$group" "${!pid}" "$root" </dev/null >"$root.boot" 2>&1 &
	pids+=("$!")
	disown
	for ((i = 0; i < 600; i++)); do
		sleep 0.1
		while read -r process; do
			[[ $(readlink "/proc/$process/exe") == */systemd/systemd ]] || continue
			printf -v "init_$name" '%s' "$process"
			! in_host "$name" systemctl is-active --quiet test.target 2>/dev/null </dev/null || return 0
		done < <(cat "$group/cgroup.procs" "$group/init.scope/cgroup.procs" 2>/dev/null)
	done
	cat "$root.boot" >&2
	die "systemd does not start on $name"
}

# in_host NAME COMMAND... runs a command on a host that was booted, in its control group.
in_host() {
	local init=init_$1 group=group_$1
	shift
	# shellcheck disable=SC2016 # the inner shell expands it
	bash -c 'echo $$ >"$1/commands/cgroup.procs"; shift; exec "$@"' - "${!group}" \
		nsenter -t "${!init}" -m -u -n -p -C "${clean_env[@]}" "$@"
}

# run_on HOST COMMAND... runs a command on a host that was booted, and shows its output only if it fails. The output stays in
# $work/HOST.log.
run_on() { in_host "$@" >"$work/$1.log" 2>&1 </dev/null || { cat "$work/$1.log" >&2; die "$1: ${*:2} failed"; }; }

# clean_hosts ends what was started, and removes it.
clean_hosts() {
	local pid group
	for pid in "${pids[@]}"; do
		kill -KILL "$pid" 2>/dev/null || true
	done
	for group in "${groups[@]}"; do
		for ((i = 0; i < 50; i++)); do
			find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
			[[ -d $group ]] || break
			sleep 0.1
		done
	done
}
