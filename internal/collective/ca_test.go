package collective

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestInitCAKeepsAnExistingAuthority(t *testing.T) {
	dir := t.TempDir()
	if _, err := InitCA(dir, "one"); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(filepath.Join(dir, "ca.key"))
	_, err := InitCA(dir, "two")
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), filepath.Join(dir, "ca.key")) {
		t.Fatalf("second InitCA: %v", err)
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "ca.key")); string(after) != string(before) {
		t.Fatal("the authority's key was overwritten")
	}
	if info, _ := os.Stat(filepath.Join(dir, "ca.key")); info.Mode().Perm() != 0o600 {
		t.Fatalf("the authority's key has mode %v", info.Mode())
	}
	ca, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ca.Name() != "one" {
		t.Fatalf("the authority is %q", ca.Name())
	}
}

func TestOpenCAFaults(t *testing.T) {
	if _, err := OpenCA(t.TempDir()); err == nil || !strings.Contains(err.Error(), "dcol ca init") {
		t.Fatalf("no authority: %v", err)
	}
	a, b := newCA(t), newCA(t)
	copyFile(t, filepath.Join(b.dir, caKeyFile), filepath.Join(a.dir, caKeyFile))
	if _, err := OpenCA(a.dir); !errors.Is(err, ErrKeyMismatch) {
		t.Fatalf("another authority's key: %v", err)
	}
}

func TestIssue(t *testing.T) {
	ca := newCA(t)
	first := issue(t, ca, Request{Name: "alice"})
	if info, _ := os.Stat(first.KeyFile); info.Mode().Perm() != 0o600 {
		t.Fatalf("the key has mode %v", info.Mode())
	}
	if _, err := ca.Issue(Request{Name: "alice", Validity: time.Hour}); !errors.Is(err, ErrExists) {
		t.Fatalf("issuing twice: %v", err)
	}
	second := issue(t, ca, Request{Name: "alice", Reissue: true})
	if first.Serial == second.Serial {
		t.Fatal("two certificates with one serial number")
	}
	for _, name := range []string{"", "ca", "Alice", "../alice", "al ice", "-a", "a-", "a.b", strings.Repeat("a", 64), "élise"} {
		if out, err := ca.Issue(Request{Name: name, Validity: time.Hour}); err == nil {
			t.Errorf("issued %q: %v", name, out)
		}
	}
	for _, validity := range []time.Duration{0, -time.Hour, 100 * 365 * 24 * time.Hour} {
		if _, err := ca.Issue(Request{Name: "bob", Validity: validity}); err == nil {
			t.Errorf("issued for %v", validity)
		}
	}
}

func TestRevoke(t *testing.T) {
	ca := newCA(t)
	a1 := issue(t, ca, Request{Name: "alice"})
	a2 := issue(t, ca, Request{Name: "alice", Reissue: true})
	bob := issue(t, ca, Request{Name: "bob"})
	carol := issue(t, ca, Request{Name: "carol"})

	got, err := ca.Revoke("alice", PrivilegeWithdrawn)
	if err != nil || len(got) != 2 {
		t.Fatalf("revoke alice: %v, %v", got, err)
	}
	if _, err := ca.Revoke(strings.ToUpper(bob.Serial), KeyCompromise); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Revoke("bob", KeyCompromise); err != nil {
		t.Fatalf("revoking again must be harmless: %v", err)
	}
	if _, err := ca.Revoke("dave", Unspecified); err == nil || !strings.Contains(err.Error(), "dave") {
		t.Fatalf("revoking a stranger: %v", err)
	}

	list := ownList(t, ca)
	reasons := map[string]int{}
	for _, e := range list.RevokedCertificateEntries {
		reasons[serialText(e.SerialNumber)] = e.ReasonCode
	}
	want := map[string]int{a1.Serial: 9, a2.Serial: 9, bob.Serial: 1}
	if len(reasons) != len(want) {
		t.Fatalf("the list is %v, want %v", reasons, want)
	}
	for serial, reason := range want {
		if reasons[serial] != reason {
			t.Errorf("%s: reason %d, want %d", serial, reasons[serial], reason)
		}
	}
	if _, on := reasons[carol.Serial]; on {
		t.Error("carol is on the list")
	}
}

func TestReasonNames(t *testing.T) {
	for r := range reasonNames {
		if got, err := ParseReason(r.String()); err != nil || got != r {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	if _, err := ParseReason("whim"); err == nil || !strings.Contains(err.Error(), "expelled") {
		t.Errorf("unknown reason: %v", err)
	}
}
