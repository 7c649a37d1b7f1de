package api

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestDestinations(t *testing.T) {
	at := netip.MustParseAddrPort
	lookup := func(name string) ([]netip.Addr, error) {
		switch name {
		case "example.org":
			return []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.80"), netip.MustParseAddr("2001:db8::80")}, nil
		case "blocked":
			return []netip.Addr{netip.IPv4Unspecified()}, nil
		case "unanswered":
			return nil, &net.DNSError{Err: "read udp [::1]:40000->[::1]:53: connection refused", Name: name, Server: "[::1]:53"}
		case "failing":
			return nil, &net.DNSError{Err: "server misbehaving", Name: name, Server: "[::1]:53", IsTemporary: true}
		}
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	for text, want := range map[string][]netip.AddrPort{
		"192.0.2.80":                     {at("192.0.2.80:0")},
		"::ffff:192.0.2.80":              {at("192.0.2.80:0")},
		"192.0.2.80:81":                  {at("192.0.2.80:81")},
		"2001:db8::80":                   {at("[2001:db8::80]:0")},
		"[2001:db8::80]":                 {at("[2001:db8::80]:0")},
		"[2001:db8::80]:81":              {at("[2001:db8::80]:81")},
		"example.org:443":                {at("192.0.2.80:443"), at("[2001:db8::80]:443")},
		"http://192.0.2.80/big":          {at("192.0.2.80:80")},
		"https://eve@example.org/?a=b/c": {at("192.0.2.80:443"), at("[2001:db8::80]:443")},
		"http://[2001:db8::80]:81/":      {at("[2001:db8::80]:81")},
		"ftp://192.0.2.80":               {at("192.0.2.80:0")},
	} {
		if got, err := Destinations(text, lookup); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"192.0.2.0/24":    "192.0.2.0/24 is a network: name one address in it, such as 192.0.2.1",
		"192.0.2.300":     `"192.0.2.300" is not a valid address`,
		"192.0.2.300:80":  `"192.0.2.300" is not a valid address`,
		"2001:db8:::1":    `"2001:db8:::1" is not a valid address`,
		"[2001:db8::80":   `"[2001:db8::80" is not a valid address`,
		"2001:db8::80]":   `"2001:db8::80]" is not a valid address`,
		"[example.org":    `"[example.org" is not a valid address`,
		"0.0.0.0:80":      `0.0.0.0 is the unspecified address, and TCP connections lead to one server only`,
		"::":              `:: is the unspecified address`,
		"224.0.0.1":       `224.0.0.1 is a multicast address`,
		"[ff02::1]:80":    `ff02::1 is a multicast address`,
		"255.255.255.255": `255.255.255.255 is the broadcast address`,
		"blocked":         `0.0.0.0 is the unspecified address`,
		"example.org/big": `"example.org/big" is neither an address nor a name; write "example.org"`,
		"192.0.2.80:0":    `"0" is not a port`,
		"nowhere":         `"nowhere" is no address, and no name that can be resolved: there is no such name`,
		"unanswered":      `"unanswered" is no address, and no name that can be resolved: no name server answers; /etc/resolv.conf`,
		"failing":         `"failing" is no address, and no name that can be resolved: the name server failed`,
	} {
		if got, err := Destinations(text, lookup); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, want := range []error{ErrNoAgent, context.Canceled} {
		if _, err := Destinations("bob", func(string) ([]netip.Addr, error) { return nil, want }); !errors.Is(err, want) {
			t.Errorf("%v became %v", want, err)
		}
	}
}
