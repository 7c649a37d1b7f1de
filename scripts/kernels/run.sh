#!/usr/bin/env bash
# Runs the tests named in /run/job/tests in the guest, after init has mounted its root.
# Their output goes to the second serial port. The kernel writes to the first.
#
# /run/job is out/kernels/SERIES on the host. job.sh there sets:
#   repository     the source tree
#   modules        the modules of this kernel
#   environment    for the tests, NAME=VALUE
#   arguments      for the test binaries
# Each line of tests is PACKAGE-FOLDER TEST-BINARY, below the repository.
# shellcheck disable=SC2154 # what job.sh sets
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/scratch

# As init and systemd leave a Debian host.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
# Below none of the folders that hosts of the lab have for themselves.
mkdir "$TMPDIR"
mount -t tmpfs -o mode=1777,size=50% scratch "$TMPDIR"
hostname guest
ip link set lo up

# shellcheck source=/dev/null # test-kernels.sh writes it
source /run/job/job.sh
mkdir -p /lib/modules
mount --bind "$modules" /lib/modules
# Debian's kmod has the device nodes of modules made that are loaded at first use.
kmod static-nodes --format=tmpfiles | while read -r type path mode _ _ _ device; do
	case $type in
	d) mkdir -p "$path" ;;
	c!) mknod -m "$mode" "$path" c "${device%:*}" "${device#*:}" ;;
	esac
done

exec >/dev/ttyS1 2>&1 </dev/null
stty -F /dev/ttyS1 -opost
printf '== Linux %s, up after %.0f s\n' "$(uname -r)" "$(cut -d' ' -f1 /proc/uptime)"
touch /run/job/started

failed=0
while read -r package binary <&3; do
	printf '== %s\n' "$package"
	(cd "$repository/$package" && env "${environment[@]}" "$repository/$binary" "${arguments[@]}")
	status=$?
	if [[ $status == 0 ]]; then
		printf 'ok   %s (%s)\n' "$package" "$(uname -r)"
	else
		printf 'FAIL %s (%s): exit status %d\n' "$package" "$(uname -r)" "$status"
		failed=1
	fi
done 3</run/job/tests

dmesg >/run/job/dmesg
echo "$failed" >/run/job/status
sync
echo o >/proc/sysrq-trigger
sleep 60
