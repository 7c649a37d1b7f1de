package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnits has systemd check the units, in a root folder that has nothing else of this host.
func TestUnits(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	root := t.TempDir()
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"/usr/bin/dcol", "/bin/kill"} {
		write(program, "#!/bin/sh\n", 0o755)
	}
	for _, target := range []string{"basic", "multi-user", "network", "network-online", "shutdown", "sysinit", "time-set", "time-sync", "timers"} {
		write("/etc/systemd/system/"+target+".target", "[Unit]\nDescription="+target+"\n", 0o644)
	}
	for _, name := range []string{"dcol.service", "dcol-probe@.service", "dcol-probe@.timer"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write("/etc/systemd/system/"+name, strings.ReplaceAll(string(text), "@BINDIR@", "/usr/bin"), 0o644)
	}
	check := func() (string, error) {
		out, err := exec.Command(verify, "verify", "--man=no", "--root="+root, "dcol.service", "dcol-probe@office.service", "dcol-probe@office.timer").CombinedOutput()
		return string(out), err
	}
	if out, err := check(); err != nil || out != "" {
		t.Errorf("%v: %s", err, out)
	}
	write("/etc/systemd/system/dcol-probe@.timer", "[Timer]\nOnCalender=*:0/15\n", 0o644)
	if out, _ := check(); !strings.Contains(out, "OnCalender") {
		t.Errorf("a wrong key was not found: %q", out)
	}
}
