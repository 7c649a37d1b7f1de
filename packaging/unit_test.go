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

// The units run as the user that sysusers.d makes, and the agent's gives it the capabilities that remain.
func TestUserOfTheUnits(t *testing.T) {
	fields := strings.Fields(strings.Split(User, "\n")[1])
	if len(fields) < 2 || fields[0] != "u" {
		t.Fatalf("the user is %q", User)
	}
	agent := setting(Unit("/usr/bin"), "AmbientCapabilities")
	if agent == "" || agent != setting(Unit("/usr/bin"), "CapabilityBoundingSet") {
		t.Errorf("the agent gets %q", agent)
	}
	for _, name := range []string{"dcol.service", "dcol-probe@.service"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := setting(string(text), "User"); got != fields[1] {
			t.Errorf("%s runs as %q, and sysusers.d makes %q", name, got, fields[1])
		}
	}
	for _, key := range []string{"ExecStartPre", "ExecReload"} {
		if got := setting(Unit("/usr/bin"), key); got != "-+/usr/bin/dcol hand-over "+fields[1] {
			t.Errorf("%s is %q", key, got)
		}
	}
	program, err := exec.LookPath("systemd-sysusers")
	if err != nil {
		t.Skip("needs systemd-sysusers")
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, "--root="+root, "--inline", strings.Split(User, "\n")[1]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	made, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !strings.Contains(string(made), fields[1]+":x:") {
		t.Errorf("systemd-sysusers made %q, %v", made, err)
	}
}
