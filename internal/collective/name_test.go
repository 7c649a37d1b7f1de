package collective

import (
	"strings"
	"testing"
	"time"
)

func TestCollectiveNames(t *testing.T) {
	for _, good := range []string{"friends", "Freunde & Söhne (Köln)", "友達", strings.Repeat("a", maxCollective)} {
		if err := CheckCollective(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{
		"", " ", "a ", " a", "a  b", "a\nb", "\x1b[31m", "a\u202eb", "\xff", strings.Repeat("a", maxCollective+1),
		"../../etc", "..", ".hidden", "a/b", `a\b`, "-rf", "--name", "~root", "$HOME", "a;b", "a|b", "`id`", "a\"b", "a<b>", "*", "a\u200bb", "\u0301",
	} {
		if err := CheckCollective(bad); err == nil {
			t.Errorf("a collective may be called %q", bad)
		}
		if _, err := InitCA(t.TempDir()+"/ca", bad); err == nil {
			t.Errorf("made a collective called %q", bad)
		}
	}
}

func TestNames(t *testing.T) {
	for _, good := range []string{"a", "alice", "a-1", "1", "signer1", strings.Repeat("a", 63)} {
		if err := CheckName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "-a", "a-", "A", "a.b", "a/b", "..", "a b", "*", ">", "é", strings.Repeat("a", 64), "ca", "signer"} {
		if err := CheckName(bad); err == nil {
			t.Errorf("a member may be called %q", bad)
		}
	}
	if err := CheckName("é"); err == nil || !strings.Contains(err.Error(), "'é' at position 1") {
		t.Errorf("%v", err)
	}
}

// A member's files must not include those that would make its directory a signer's.
func TestIssueKeepsTheAuthority(t *testing.T) {
	dir := t.TempDir()
	ca, err := InitCA(dir, "friends")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca", "signer"} {
		if _, err := ca.Issue(Request{Name: name, Validity: time.Hour, Reissue: true}); err == nil {
			t.Errorf("issued %s", name)
		}
	}
	if _, err := OpenCA(dir); err != nil {
		t.Error(err)
	}
}

// A root from another collective is refused if its name would not be allowed here.
func TestRootsNames(t *testing.T) {
	root, err := newRoot(t.TempDir(), "../../etc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseTrust(encodeCerts(root.cert), nil); err == nil || !strings.Contains(err.Error(), "../../etc") {
		t.Errorf("got %v", err)
	}
}
