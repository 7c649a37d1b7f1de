package collective

import (
	"crypto/x509"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// ownList is an authority's own list as it is in its directory.
func ownList(t *testing.T, ca *CA) *x509.RevocationList {
	t.Helper()
	trust, err := ca.Trust()
	if err != nil {
		t.Fatal(err)
	}
	return trust.lists[ca.Key()].list
}

// Lists of an authority that was restored from a backup are accepted, although members have lists that it signed
// after that backup.
func TestListAfterRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSigner(t, newCA(t))
		alice := load(t, enrol(t, s, Terms{Name: "alice"}))
		mallory := load(t, enrol(t, s, Terms{Name: "mallory"}))
		for _, name := range []string{"bob", "carol", "dave"} {
			enrol(t, s, Terms{Name: name})
		}
		backup := filepath.Join(t.TempDir(), "backup")
		if err := os.CopyFS(backup, os.DirFS(s.dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(backup, signerKeyFile), 0o600); err != nil {
			t.Fatal(err)
		}
		revoke := func(by *CA, name string) {
			t.Helper()
			if _, err := by.Revoke(name, PrivilegeWithdrawn); err != nil {
				t.Fatal(err)
			}
			if changed, err := alice.TakeTrust(nil, readAll(t, by.CRLFile())); !changed || err != nil {
				t.Errorf("the list that revokes %s: changed %v, %v", name, changed, err)
			}
		}
		for _, name := range []string{"bob", "carol", "dave"} {
			revoke(s, name) // all in one second
		}
		time.Sleep(time.Minute)
		restored, err := OpenCA(backup)
		if err != nil {
			t.Fatal(err)
		}
		revoke(restored, "mallory")
		if alice.Check(mallory.Self()) == nil {
			t.Error("mallory, who was revoked after the restore, is accepted")
		}
	})
}

func TestNextNumber(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	after := func(number int64) *revocationList {
		return &revocationList{list: &x509.RevocationList{Number: big.NewInt(number)}}
	}
	for _, c := range []struct {
		what   string
		before *revocationList
		want   int64
	}{
		{"the first list", nil, 1_800_000_000},
		{"a list that was counted from 1", after(7), 1_800_000_000},
		{"a list of a while ago", after(1_799_999_000), 1_800_000_000},
		{"a list of the same second", after(1_800_000_000), 1_800_000_001},
		{"the clock was ahead", after(1_900_000_000), 1_900_000_001},
	} {
		if got := nextNumber(c.before, now); got.Int64() != c.want {
			t.Errorf("%s: number %v, want %d", c.what, got, c.want)
		}
	}
}

// A member accepts lists numbered from 1, and replaces them by lists numbered by time.
func TestListCountedFromOne(t *testing.T) {
	root := newCA(t)
	lists := must(root.sign(nil, big.NewInt(3)))(t)
	if err := durable.Replace(root.CRLFile(), lists.encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	f := install(t, root, issue(t, root, Request{Name: "alice"}))
	alice := load(t, f)
	issue(t, root, Request{Name: "bob"})
	if _, err := root.Revoke("bob", PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	if changed, err := alice.TakeTrust(nil, readAll(t, root.CRLFile())); !changed || err != nil {
		t.Errorf("the next list: changed %v, %v", changed, err)
	}
	if changed, err := alice.TakeTrust(nil, lists.encode()); changed || err != nil {
		t.Errorf("the list before: changed %v, %v", changed, err)
	}
}
