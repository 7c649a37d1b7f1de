package enrol

import (
	"net/netip"
	"testing"
)

func TestShares(t *testing.T) {
	for _, test := range []struct {
		own, at string
		want    bool
	}{
		{"192.168.1.5", "192.168.178.1", true},
		{"192.168.1.5", "10.0.0.1", false},
		{"203.0.113.5", "10.0.0.1", false},
		{"203.0.113.5", "100.64.3.2", false},
		{"100.100.1.1", "100.64.3.2", true},
		{"172.31.0.1", "172.16.0.1", true},
		{"2001:db8::1", "fd00::1", false},
		{"fd12::1", "fd00::1", true},
		{"10.0.0.1", "203.0.113.9", true},
		{"10.0.0.1", "2001:db8::7", true},
	} {
		if got := Shares([]netip.Addr{netip.MustParseAddr(test.own)}, netip.MustParseAddr(test.at)); got != test.want {
			t.Errorf("a host at %s may share %s: %v", test.own, test.at, got)
		}
	}
}
