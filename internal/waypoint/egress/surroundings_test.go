package egress

import (
	"errors"
	"net/netip"
	"testing"
)

// at is a home: behind a NAT in IPv4, and in a /64 of its provider's in IPv6.
var at = Surroundings{
	Own: []netip.Addr{netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("2a02:810d:1:2:5054:ff:fe00:1")},
	OnLink: []netip.Prefix{
		netip.MustParsePrefix("192.168.1.10/24"), netip.MustParsePrefix("2a02:810d:1:2:5054:ff:fe00:1/64"),
		netip.MustParsePrefix("81.2.69.129/28"), netip.MustParsePrefix("81.9.9.1/32"),
		netip.MustParsePrefix("192.88.99.7/23"),  // begins with public addresses
		netip.MustParsePrefix("198.51.101.7/23"), // begins with addresses that are denied anyway
	},
	Outside: Outside{
		NATs:    []netip.Addr{netip.MustParseAddr("84.1.2.3")},
		Routers: []netip.Addr{netip.MustParseAddr("2a02:810d:1:2::1"), netip.MustParseAddr("2a02:8100:ff:7::1"), netip.MustParseAddr("fe80::1")},
	},
}

func reason(t *testing.T, p *Policy, server string) Reason {
	t.Helper()
	err := p.Check(netip.MustParseAddrPort(server))
	var denied *Denied
	if err != nil && !errors.As(err, &denied) {
		t.Fatalf("%s: %v", server, err)
	}
	if denied == nil {
		return 0
	}
	return denied.Reason
}

// Networks near a waypoint are denied by default, also at public addresses, and the addresses beside them are not.
func TestNearIsDenied(t *testing.T) {
	p, err := New(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]Reason{
		"84.1.2.3:80":                         OutsideAddress, // the router's page, by hairpin
		"84.1.2.4:80":                         0,
		"[64:ff9b::5401:203]:80":              OutsideAddress,
		"[2a02:810d:1:2::1]:80":               Neighbour, // the router
		"[2a02:810d:1:2:5054:ff:fe00:2]:445":  Neighbour,
		"[2a02:810d:1:0:5054:ff:fe00:2]:445":  Neighbour, // another network of the same home
		"[2a02:810d:1:ff:5054:ff:fe00:2]:445": Neighbour,
		"[2a02:810d:1:100::1]:445":            0,
		"[2a02:8100:ff:7::2]:80":              RouterLink, // the router's address towards its provider
		"[2a02:8100:ff:8::2]:80":              0,
		"81.2.69.142:80":                      Neighbour,
		"81.2.69.144:80":                      0,
		"81.9.9.1:80":                         Neighbour, // a router that no prefix covers
		"81.9.9.2:80":                         0,
		"192.88.98.1:80":                      Neighbour,
		"192.88.99.1:80":                      Transition,
		"198.51.101.1:80":                     Neighbour,
		"198.51.100.1:80":                     Documentation,
		"198.51.102.1:80":                     0,
		"192.168.1.1:80":                      Private,
		"192.168.1.10:80":                     OwnAddress,
		"1.1.1.1:80":                          0,
	} {
		if got := reason(t, p.Around(at), server); got != want {
			t.Errorf("%s: got %q, want %q", server, got, want)
		}
	}
	if got := reason(t, p, "84.1.2.3:80"); got != 0 {
		t.Errorf("Around changed the policy it was called on: %q", got)
	}
}

// The operator opens a near network by allowing just the denied prefix, or by allowing private addresses.
func TestNearIsOpenedByName(t *testing.T) {
	for server, allow := range map[string]string{
		"84.1.2.3:80":            "84.1.2.3/32",
		"[2a02:810d:1:2::1]:80":  "2a02:810d:1:2::/64",
		"[2a02:810d:1:3::1]:80":  "2a02:810d:1::/56",
		"[2a02:8100:ff:7::2]:80": "2a02:8100:ff:7::/64",
		"81.2.69.142:80":         "81.2.69.128/28",
		"192.168.1.1:80":         "192.168.0.0/16",
	} {
		prefix := netip.MustParsePrefix(allow)
		p, err := New([]netip.Prefix{prefix}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := reason(t, p.Around(at), server); got != 0 {
			t.Errorf("%s stays denied though %v is allowed: %q", server, prefix, got)
		}
		wider := netip.PrefixFrom(prefix.Addr(), prefix.Bits()-1).Masked()
		if p, err = New([]netip.Prefix{wider}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if got := reason(t, p.Around(at), server); got == 0 {
			t.Errorf("%s is open as %v is allowed, which is wider than what denies it", server, wider)
		}
	}
}

// A host behind a NAT with an unknown external address forwards nothing to IPv4 servers unless the operator allows
// it.
func TestHidden(t *testing.T) {
	p, err := New(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	hidden := Surroundings{Outside: Outside{Hidden: true}}
	if got := reason(t, p.Around(hidden), "1.1.1.1:80"); got != OutsideUnknown {
		t.Errorf("got %q", got)
	}
	if got := reason(t, p.Around(hidden), "[64:ff9b::101:101]:80"); got != OutsideUnknown {
		t.Errorf("by a translator: %q", got)
	}
	if got := reason(t, p.Around(hidden), "[2606:4700::1111]:80"); got != 0 {
		t.Errorf("IPv6: %q", got)
	}
	if p, err = New([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := reason(t, p.Around(hidden), "1.1.1.1:80"); got != 0 {
		t.Errorf("opened by the operator: %q", got)
	}
}
