package egress

import (
	"errors"
	"net/netip"
	"testing"
)

func TestNarrowing(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	only := Narrowing{Only: prefixes("8.8.0.0/16", "2001:4860::/32"), Deny: prefixes("8.8.9.0/24"), Ports: []uint16{80, 443}}
	for _, c := range []struct {
		name   string
		of     Narrowing
		server string
		reason Reason // 0: allowed
	}{
		{"nothing is limited", Narrowing{}, "9.9.9.9:25", 0},
		{"within", only, "8.8.8.8:443", 0},
		{"within, IPv6", only, "[2001:4860::1]:80", 0},
		{"another port", only, "8.8.8.8:8080", MemberPort},
		{"outside", only, "9.9.9.9:443", MemberDenied},
		{"outside, IPv6", only, "[2001:db8::1]:443", MemberDenied},
		{"denied within", only, "8.8.9.1:443", MemberDenied},
		{"by the address inside, which is allowed", only, "[64:ff9b::808:808]:443", 0},
		{"by the address inside, which is denied", only, "[64:ff9b::808:901]:443", MemberDenied},
		{"a zone changes nothing", Narrowing{Deny: prefixes("fe80::/10")}, "[fe80::1%eth0]:443", MemberDenied},
		{"only denials", Narrowing{Deny: prefixes("9.0.0.0/8")}, "8.8.8.8:443", 0},
	} {
		err := c.of.Check(netip.MustParseAddrPort(c.server))
		var denied *Denied
		if errors.As(err, &denied); (err == nil) != (c.reason == 0) || err != nil && denied.Reason != c.reason {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if (Narrowing{}).Limits() || !only.Limits() {
		t.Error("Limits")
	}
}
