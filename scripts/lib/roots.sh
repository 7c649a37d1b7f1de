# shellcheck shell=bash
# Bare Debian root directories, for test-roots.sh and test-deb.sh, which source this file after messages.sh.

# bare SUITE makes a root directory below .cache/roots that runs are copied from, unless it is there.
bare() {
	local suite=$1 root=.cache/roots/$1
	[[ ! -e $root/made ]] || return 0
	say "installing a bare Debian $suite, about 300 MB"
	rm -rf "$root"
	mkdir -p "$root"
	debootstrap --include=git,make,ca-certificates "$suite" "$root/fs" >"out/roots/$suite.install.log" 2>&1 ||
		die "Debian $suite cannot be installed" "see out/roots/$suite.install.log"
	touch "$root/made"
}

# fresh SUITE NAME copies the root directory for a run, and prints its path.
fresh() {
	local root=$PWD/.cache/roots/$1/$2
	rm -rf "$root"
	cp -a --reflink=auto ".cache/roots/$1/fs" "$root"
	cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
	printf '%s\n' "$root"
}

# inside ROOT COMMAND... runs a command in a root directory, with a tmpfs at /run.
inside() {
	# shellcheck disable=SC2016 # the inner shell expands them
	unshare -m --propagation private bash -c '
		set -e
		root=$1
		shift
		mount --bind "$root" "$root"
		mount -t proc proc "$root/proc"
		mount --rbind /sys "$root/sys"
		mount --rbind /dev "$root/dev"
		mount -t tmpfs tmpfs "$root/run"
		mkdir -p "$root/old"
		cd "$root"
		pivot_root . old
		cd /
		umount -l /old
		rmdir /old
		exec "$@"' - "$@"
}
