package client

import (
	"net/netip"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
)

// A service has a number of its own, which changes with anything that is said of it.
func TestServiceNumbers(t *testing.T) {
	seen := map[uint32]bool{0: true}
	for _, x := range []config.Incoming{
		{Converter: "bob", Port: 80, To: netip.MustParseAddrPort("127.0.0.1:80")}, {Converter: "bo", Port: 80, To: netip.MustParseAddrPort("127.0.0.1:80")},
		{Converter: "bob", Port: 81, To: netip.MustParseAddrPort("127.0.0.1:80")}, {Converter: "bob", Port: 80, To: netip.MustParseAddrPort("127.0.0.1:81")},
		{Converter: "bob", Port: 80, To: netip.MustParseAddrPort("[::1]:80")},
	} {
		if n := serviceNumber(x); seen[n] {
			t.Errorf("%+v has the number %d of another", x, n)
		} else {
			seen[n] = true
		}
	}
}
