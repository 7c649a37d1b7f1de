#!/usr/bin/env bash
# The part of test-deb.sh that runs in a bare root, in a network namespace of its own:
#
#   test-deb-inside.sh OLD NEW ARCH
set -euo pipefail
old=$1 new=$2 arch=$3
cd /root/deb

step() { printf '\n== %s\n' "$*"; }
die() {
	printf 'error: %s\n' "$*"
	exit 1
}

# files lists what a package could leave behind.
files() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /root -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log/dpkg.log -o -path /var/cache \) -prune -o -print | sort; }

ip link set lo up 2>/dev/null || true
files >/tmp/before

step "install $old"
dpkg -i "dcol_${old}_$arch.deb" "dcol-lab_${old}_$arch.deb"
[[ $(dcol --version) == "dcol $old" ]] || die "it is $(dcol --version)"
[[ $(dcol-lab --version) == "dcol-lab $old" ]] || die "it is $(dcol-lab --version)"
for file in /usr/share/man/man1/dcol.1.gz /usr/share/man/man1/dcol-analyse.1.gz /usr/share/man/man1/dcol-lab.1.gz \
	/usr/share/bash-completion/completions/dcol /usr/share/zsh/vendor-completions/_dcol /usr/share/fish/vendor_completions.d/dcol.fish \
	/usr/lib/systemd/system/dcol.service /usr/lib/systemd/system/dcol-probe@.service /usr/lib/systemd/system/dcol-probe@.timer /usr/share/doc/dcol/licenses.gz \
	/usr/share/doc/dcol/docs/configuration.md /usr/share/doc/dcol/docs/lab.md; do
	[[ -s $file ]] || die "$file is missing"
done
bash -n /usr/share/bash-completion/completions/dcol
getent passwd dcol || die "the agent's user is missing"

step 'systemd takes the units of probe traffic'
systemd-analyze verify --man=no --recursive-errors=no dcol-probe@office.service dcol-probe@office.timer || die 'systemd finds faults in the units'

step 'an agent runs'
mkdir -p /etc/dcol
dcol ca init --dir /etc/dcol --name lab
dcol ca issue alice --dir /etc/dcol
cat >/etc/dcol/dcol.toml <<EOF
name  = "alice"
roles = ["client"]

[identity]
certificate = "/etc/dcol/alice.crt"
key         = "/etc/dcol/alice.key"
ca          = "/etc/dcol/ca.crt"
EOF
dcol agent --check
dcol agent --log /var/log/dcol-agent.log &
agent=$!
for ((i = 0; i < 300; i++)); do
	! dcol status >/dev/null 2>&1 || break
	sleep 0.1
done
dcol status || { cat /var/log/dcol-agent.log; die 'the agent does not answer'; }

step "upgrade to $new beside it"
dpkg -i "dcol_${new}_$arch.deb" "dcol-lab_${new}_$arch.deb"
[[ $(dcol --version) == "dcol $new" ]] || die "it is $(dcol --version)"
kill -0 "$agent" || die 'the upgrade ended the agent'
dcol status || die 'the agent does not answer the new command'
[[ -e /etc/dcol/dcol.toml ]] || die 'the upgrade removed the configuration'

# What dcol join, systemctl enable and an instance of the probe leave (docs/probe.md).
links=(/etc/systemd/system/multi-user.target.wants/dcol.service /etc/systemd/system/timers.target.wants/dcol-probe@office.timer)
for link in "${links[@]}"; do
	mkdir -p "${link%/*}"
	ln -s "/usr/lib/systemd/system/${link##*/}" "$link"
done
mkdir -p /etc/dcol/probe /var/lib/dcol-probe
touch /etc/dcol/probe/office /var/lib/dcol-probe/office.jsonl

# A systemctl that only notes what the removal asks of it.
mkdir -p /run/systemd/system
printf '#!/bin/sh\necho "$*" >>/tmp/systemctl.log\n' >/usr/local/bin/systemctl
chmod 755 /usr/local/bin/systemctl

step 'remove'
dpkg -r dcol-lab dcol
for ((i = 0; i < 300; i++)); do
	kill -0 "$agent" 2>/dev/null || break
	sleep 0.1
done
! kill -0 "$agent" 2>/dev/null || die 'the agent still runs'
[[ -e /etc/dcol/dcol.toml ]] || die 'a removal keeps the configuration; a purge does not'
[[ ! -e /usr/bin/dcol ]] || die '/usr/bin/dcol is still there'
for link in "${links[@]}"; do
	[[ -L $link ]] || die "$link is gone: another installation would not start at boot"
done
for unit in 'dcol-probe@*.timer' 'dcol-probe@*.service' dcol.service; do
	grep -qxF "stop $unit" /tmp/systemctl.log || die "the removal does not stop $unit"
done
rm -f /usr/local/bin/systemctl

step 'purge'
dpkg -P dcol-lab dcol
! getent passwd dcol || die "the agent's user is still there"
rm -f /var/log/dcol-agent.log # this script's own
rmdir /etc/systemd/system/{multi-user,timers}.target.wants 2>/dev/null || true # systemd's, if it is there
files >/tmp/after
diff /tmp/before /tmp/after || die 'something was left behind'
step passed
