package api

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// askAs requests a path of the socket as another user, with a program of the host.
func askAs(t *testing.T, credential *syscall.Credential, socket, method, path string) (answer string, allowed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "curl", "-sS", "--unix-socket", socket, "-X", method, "-d", "{}", "http://agent"+path)
	if method == http.MethodGet {
		cmd.Args = []string{"curl", "-sS", "--unix-socket", socket, "http://agent" + path}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err == nil
}

// Operators may read the state and steer. They may not invite, expel or reload. Other users may do nothing.
func TestOperators(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it becomes other users")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	group, err := user.LookupGroup("games")
	if err != nil {
		t.Skip("needs Debian's group games")
	}
	if group.Gid != "60" {
		t.Skip("the group games is not Debian's")
	}
	socket, _ := serve(t, fake{members: Members{Schema: MembersSchema}})
	for parent := filepath.Dir(socket); parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil { // like /run
			t.Fatal(err)
		}
	}
	operator := &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{60}}
	other := &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{61}}
	if answer, allowed := askAs(t, operator, socket, http.MethodGet, "/v1/members"); allowed {
		t.Fatalf("before the group is allowed: %s", answer)
	}
	if err := AllowGroup(socket, "games"); err != nil {
		t.Fatal(err)
	}
	if answer, allowed := askAs(t, operator, socket, http.MethodGet, "/v1/members"); !allowed || !strings.Contains(answer, MembersSchema) {
		t.Errorf("an operator looks: %s", answer)
	}
	if answer, _ := askAs(t, operator, socket, http.MethodPost, "/v1/log-level"); !strings.Contains(answer, "subsystems") {
		t.Errorf("an operator steers: %s", answer)
	}
	for _, path := range []string{"/v1/invite", "/v1/expel", "/v1/reload", "/v1/congestion"} {
		if answer, _ := askAs(t, operator, socket, http.MethodPost, path); !strings.Contains(answer, "only root may do this") {
			t.Errorf("an operator asks for %s: %s", path, answer)
		}
	}
	if answer, allowed := askAs(t, other, socket, http.MethodGet, "/v1/members"); allowed {
		t.Errorf("another user looks: %s", answer)
	}
	if err := AllowGroup(socket, "no-such-group"); err == nil {
		t.Error("a group that does not exist is allowed")
	}
}
