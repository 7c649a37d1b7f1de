#!/usr/bin/env bash
# Boots the systemd of a bare root directory, as lib/hosts.sh needs it:
#
#   boot.sh GROUP PID ROOT
#
# GROUP is the control group for it, PID a process whose network namespace it gets. It ends when this script is killed.
set -euo pipefail
if [[ $# == 3 ]]; then
	echo $$ >"$1/cgroup.procs"
	exec nsenter -t "$2" -n -u unshare --pid --fork --kill-child --cgroup --mount --propagation private "$0" "$3"
fi
root=$1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount --bind /proc/sys/net "$root/proc/sys/net"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
mount -t bpf bpf "$root/sys/fs/bpf"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/net" "$root/dev/pts" "$root/dev/shm"
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "net/tun 10 200"; do
	read -r path major minor <<<"$device"
	mknod -m 666 "$root/dev/$path" c "$major" "$minor"
done
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/old"
cd "$root"
pivot_root . old
cd /
umount -l /old
rmdir /old
export container=dcol-test
exec setpriv --bounding-set -sys_module,-sys_time,-sys_rawio,-syslog,-mac_admin,-mac_override /sbin/init --unit=test.target
