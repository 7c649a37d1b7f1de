package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lifeOfAPackage runs the scripts of the Debian package on folders that only it sees: after a removal it prints what is
// enabled and kept, and after a purge what is left.
const lifeOfAPackage = `set -e
for folder in /etc /var/lib /var/log /run; do mount -t tmpfs tmpfs $folder; done
wants=/etc/systemd/system
mkdir -p $wants/multi-user.target.wants $wants/timers.target.wants /run/systemd/system /etc/dcol/probe /var/lib/dcol /var/lib/dcol-probe /var/log/dcol /run/dcol
ln -s /usr/lib/systemd/system/dcol.service $wants/multi-user.target.wants/dcol.service
ln -s /usr/lib/systemd/system/dcol-probe@.timer $wants/timers.target.wants/dcol-probe@office.timer
ln -s /usr/lib/systemd/system/other.timer $wants/timers.target.wants/other.timer
touch /etc/dcol/probe/office /var/lib/dcol-probe/office.jsonl
left() { find /etc /var/lib /var/log /run '(' -type f -o -type l ')' | sort; }
sh "$1/dcol.postinst" configure
echo installed
sh "$1/dcol.prerm" upgrade 2
sh "$1/dcol.postrm" upgrade 2
echo upgraded
sh "$1/dcol.prerm" remove
sh "$1/dcol.postrm" remove
echo removed
left
sh "$1/dcol.postrm" purge
echo purged
left
`

// An upgrade stops nothing. A removal stops the agent and the probe's instances, and another installation goes on with what
// is kept. A purge leaves nothing of dcol's, and removes the agent's user.
func TestDebianScripts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts file systems")
	}
	programs := t.TempDir()
	for _, name := range []string{"deb-systemd-invoke", "systemctl", "systemd-sysusers", "getent", "userdel", "dcol"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\necho \"${0##*/} $*\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	scripts, err := filepath.Abs("debian")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "--propagation", "private", "sh", "-c", lifeOfAPackage, "-", scripts)
	cmd.Env = []string{"PATH=" + programs + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin:/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	const want = `systemd-sysusers dcol.conf
systemctl --system daemon-reload
deb-systemd-invoke try-restart dcol.service
installed
systemctl --system daemon-reload
upgraded
deb-systemd-invoke stop dcol-probe@*.timer
deb-systemd-invoke stop dcol-probe@*.service
deb-systemd-invoke stop dcol.service
dcol down
systemctl --system daemon-reload
removed
/etc/dcol/probe/office
/etc/systemd/system/multi-user.target.wants/dcol.service
/etc/systemd/system/timers.target.wants/dcol-probe@office.timer
/etc/systemd/system/timers.target.wants/other.timer
/var/lib/dcol-probe/office.jsonl
userdel dcol
systemctl --system daemon-reload
purged
/etc/systemd/system/timers.target.wants/other.timer
`
	if got := string(out); err != nil || strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("%v:\n%s\nwant:\n%s", err, got, want)
	}
}
