package collective

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A member that renews automatically starts with a certificate that has ended, but not with an invalid one.
func TestOpenEnded(t *testing.T) {
	ca := newCA(t)
	f := install(t, ca, issue(t, ca, Request{Name: "late", NotBefore: time.Now().Add(-2 * time.Hour)}))
	if _, err := Load(f, quiet()); !errors.Is(err, ErrExpired) {
		t.Errorf("Load: %v", err)
	}
	id, err := Open(f, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Usable(); !errors.Is(err, ErrExpired) || id.Name() != "late" || strings.Contains(err.Error(), "dcol ca") {
		t.Errorf("%s is usable, or is to be issued by hand: %v", id.Name(), err)
	}
	f.CA = newCA(t).CertFile()
	if _, err := Open(f, quiet()); !errors.Is(err, ErrOtherCA) {
		t.Errorf("of another authority: %v", err)
	}
}

// The hint on a revoked certificate depends on how the member got it. Once the collective has said that the member
// was expelled, the revocation is not reported as another problem.
func TestOpenRevoked(t *testing.T) {
	ca := newCA(t)
	f := install(t, ca, issue(t, ca, Request{Name: "spammer"}))
	joined, err := Open(f, quiet())
	if err != nil {
		t.Fatal(err)
	}
	byHand, err := Load(f, quiet())
	if err != nil {
		t.Fatal(err)
	}
	joined.Disowned()
	if err := joined.Problem(); err != nil {
		t.Errorf("before: %v", err)
	}
	joined.disowned = ""
	if _, err := ca.Revoke("spammer", PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	copyFile(t, ca.CRLFile(), f.CRL)
	for _, id := range []*Identity{joined, byHand} {
		id.Refresh()
		err := id.Problem()
		if _, ok := errors.AsType[*RevokedError](err); !ok || strings.Contains(err.Error(), "--reissue") != (id == byHand) {
			t.Errorf("joined: %v; the problem: %v", id == joined, err)
		}
	}
	joined.Disowned()
	if err := joined.Problem(); err != nil {
		t.Errorf("disowned, it still says: %v", err)
	}
	if joined.Usable() == nil {
		t.Error("disowned, it is usable")
	}
}
