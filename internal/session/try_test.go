package session

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"
)

func TestTry(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	alice := a.identity("alice")
	if err := Try(t.Context(), alice, "bob", w.at, nil); err != nil {
		t.Error(err)
	}
	for name, test := range map[string]struct {
		as   string
		at   netip.AddrPort
		want ProblemCode
	}{
		"another member": {"carol", w.at, WrongName},
		"nobody":         {"bob", netip.AddrPortFrom(w.at.Addr(), 9), NoAnswer},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		var p *Problem
		if err := Try(ctx, alice, test.as, test.at, nil); !errors.As(err, &p) || p.Code != test.want {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}
