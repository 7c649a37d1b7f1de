package collective

import (
	"errors"
	"testing"
	"time"
)

// A member that renews by itself begins with a certificate that has ended, but not with one that is none.
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
	if err := id.Usable(); !errors.Is(err, ErrExpired) || id.Name() != "late" {
		t.Errorf("%s is usable: %v", id.Name(), err)
	}
	f.CA = newCA(t).CertFile()
	if _, err := Open(f, quiet()); !errors.Is(err, ErrOtherCA) {
		t.Errorf("of another authority: %v", err)
	}
}
