package setup

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The agent's user gets the folders of the agent, and may read what the configuration names and nothing else.
func TestHandOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives files to another user")
	}
	const uid, gid = 4321, 1234
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	state, etc := at("state"), at("etc")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{state, state + "/identity", etc} {
		must(os.Mkdir(folder, 0o700))
	}
	for name, mode := range map[string]os.FileMode{
		"state/file": 0o600, "state/identity/member.key": 0o600, "etc/alice.key": 0o600, "etc/alice.crt": 0o600, "etc/ca.crt": 0o644,
		"etc/ca.key": 0o600, "etc/refusals": 0o600, "shadow": 0o600, "hosts": 0o644,
	} {
		must(os.WriteFile(at(name), nil, mode))
		must(os.Chmod(at(name), mode))
	}
	// What the agent's user could do to get files of root.
	must(os.Link(at("shadow"), at("state/hard")))
	must(os.Symlink(at("shadow"), at("state/soft")))
	must(os.Symlink(dir, at("state/up")))
	configuration := at("etc/dcol.toml")
	must(os.WriteFile(configuration, fmt.Appendf(nil, `name = "alice"
roles = ["client"]
[identity]
certificate = %q
key = %q
ca = %q
`, at("etc/alice.crt"), at("etc/alice.key"), at("etc/ca.crt")), 0o600))

	for range 2 { // a second time changes nothing
		must(HandOver(uid, gid, []string{state, at("missing")}, configuration, at("etc/refusals"), at("etc/missing")))
		for name, want := range map[string]string{
			"state": "4321:1234 700", "state/file": "4321:1234 600", "state/identity": "4321:1234 700", "state/identity/member.key": "4321:1234 600",
			"etc": "0:1234 750", "etc/dcol.toml": "0:1234 640", "etc/alice.key": "4321:1234 600", "etc/alice.crt": "0:1234 640",
			"etc/ca.crt": "0:0 644", "etc/ca.key": "0:0 600", "etc/refusals": "0:1234 640", "shadow": "0:0 600", "hosts": "0:0 644",
		} {
			var st syscall.Stat_t
			must(syscall.Lstat(at(name), &st))
			if got := fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o777); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
	}

	// A key below the agent's folders is no reason to follow a link there.
	must(os.Remove(at("state/identity/member.key")))
	must(os.Symlink(at("shadow"), at("state/identity/member.key")))
	must(os.WriteFile(configuration, fmt.Appendf(nil, "name = \"alice\"\nroles = [\"client\"]\n[identity]\nkey = %q\ncertificate = %q\nca = %q\n",
		at("state/identity/member.key"), at("state/soft"), at("state/up/hosts")), 0o600))
	must(HandOver(uid, gid, []string{state}, configuration))
	for _, name := range []string{"shadow", "hosts"} {
		var st syscall.Stat_t
		must(syscall.Lstat(at(name), &st))
		if st.Uid != 0 || st.Gid != 0 {
			t.Errorf("%s was given to the agent's user", name)
		}
	}
	must(os.WriteFile(configuration, []byte("no configuration"), 0o600))
	must(HandOver(uid, gid, []string{state}, configuration))
}
