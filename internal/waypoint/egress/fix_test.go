package egress

import (
	"net/netip"
	"strings"
	"testing"
)

// A denial's hint is true: either the operator's permission opens the destination, or nothing does.
func TestDenialsNameTheFix(t *testing.T) {
	here := Surroundings{
		Own:     []netip.Addr{netip.MustParseAddr("8.8.4.4")},
		OnLink:  []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24")},
		Outside: Outside{NATs: []netip.Addr{netip.MustParseAddr("9.9.9.9")}},
	}
	usual, err := New(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	usual = usual.Around(here)
	for _, server := range []string{
		"8.8.4.4:443", "[64:ff9b::808:404]:443", "0.0.0.0:443", "[::]:443", "127.0.0.1:443", "[::1]:443", "224.0.0.1:443", "255.255.255.255:443",
		"[::ffff:1.1.1.1]:443", "1.1.1.1:0", "10.0.0.1:443", "100.64.0.1:443", "169.254.169.254:80", "192.0.2.7:443", "198.18.0.1:443", "240.0.0.1:443",
		"192.88.99.1:443", "[fd00::1]:443", "[fe80::1]:443", "[2001:db8::1]:443", "[4000::1]:443",
		"8.8.8.8:443", "9.9.9.9:443", "168.63.129.16:80",
	} {
		to := netip.MustParseAddrPort(server)
		denied := usual.Check(to)
		if denied == nil {
			t.Errorf("%s is allowed", server)
			continue
		}
		opened := false
		if open, err := New([]netip.Prefix{netip.PrefixFrom(to.Addr(), to.Addr().BitLen())}, nil, nil); err == nil {
			opened = open.Around(here).Check(to) == nil
		}
		if says := strings.Contains(denied.Error(), "its operator can allow it"); says != opened {
			t.Errorf("%v: leave opens it: %v", denied, opened)
		}
	}
}
