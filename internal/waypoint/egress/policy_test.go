package egress

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func prefixes(t *testing.T, list ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestDefaults(t *testing.T) {
	p, err := New(nil, nil, []uint16{25})
	if err != nil {
		t.Fatal(err)
	}
	p = p.Around(Surroundings{Own: []netip.Addr{netip.MustParseAddr("8.8.4.4"), netip.MustParseAddr("2a00::1")}})
	for server, want := range map[string]Reason{
		"1.1.1.1:443":             0,
		"9.255.255.255:80":        0,
		"100.63.255.255:80":       0,
		"100.128.0.0:80":          0,
		"172.15.0.1:80":           0,
		"172.32.0.1:80":           0,
		"[2a00:1450::1]:443":      0,
		"[64:ff9b::101:101]:443":  0,
		"[2002:101:101::1]:443":   0,
		"1.1.1.1:0":               NoPort,
		"1.1.1.1:25":              PortDenied,
		"8.8.4.4:443":             OwnAddress,
		"[2a00::1]:443":           OwnAddress,
		"[64:ff9b::808:404]:443":  OwnAddress,
		"0.0.0.0:443":             Unspecified,
		"0.1.2.3:443":             Unspecified,
		"[::]:443":                Unspecified,
		"127.0.0.1:443":           Loopback,
		"[::1]:443":               Loopback,
		"[64:ff9b::7f00:1]:443":   Loopback,
		"169.254.169.254:80":      LinkLocal,
		"[fe80::1]:443":           LinkLocal,
		"10.0.0.1:443":            Private,
		"172.16.0.1:443":          Private,
		"172.31.255.255:443":      Private,
		"192.168.1.1:443":         Private,
		"[fd00::1]:443":           Private,
		"[fec0::1]:443":           Private,
		"[64:ff9b:1::1]:443":      Private,
		"[2002:a00:1::1]:443":     Private,
		"[64:ff9b::a00:1]:443":    Private,
		"100.64.0.1:443":          SharedAddress,
		"100.127.255.255:443":     SharedAddress,
		"224.0.0.1:443":           Multicast,
		"239.255.255.255:443":     Multicast,
		"[ff02::1]:443":           Multicast,
		"255.255.255.255:443":     Broadcast,
		"192.0.2.1:443":           Documentation,
		"198.51.100.1:443":        Documentation,
		"203.0.113.1:443":         Documentation,
		"[2001:db8::1]:443":       Documentation,
		"[3fff::1]:443":           Documentation,
		"198.18.0.1:443":          Benchmarking,
		"198.19.255.255:443":      Benchmarking,
		"[2001:2::1]:443":         Benchmarking,
		"240.0.0.1:443":           Reserved,
		"192.0.0.1:443":           Reserved,
		"[4000::1]:443":           Reserved,
		"[100::1]:443":            Reserved,
		"[2001::1]:443":           Reserved, // Teredo
		"[::ffff:1.1.1.1]:443":    Transition,
		"[::ffff:127.0.0.1]:443":  Transition,
		"[::1.1.1.1]:443":         Transition,
		"192.88.99.1:443":         Transition,
		"168.63.129.16:80":        Platform,
		"168.63.129.17:80":        0,
		"161.26.0.10:53":          Platform,
		"[64:ff9b::a83f:8110]:80": Platform,

		"[fe80::1%eth0]:443":          LinkLocal,
		"[::1%lo]:443":                Loopback,
		"[fd00::1%eth0]:443":          Private,
		"[2a00::1%eth0]:443":          OwnAddress,
		"[::10.0.0.1]:443":            Transition,
		"[::ffff:0:10.0.0.1]:443":     Transition,
		"[64:ff9b::a9fe:a9fe]:80":     LinkLocal,
		"[64:ff9b::6440:1]:80":        SharedAddress,
		"[64:ff9b::c000:8]:80":        Reserved,
		"[64:ff9b::e000:fb]:80":       Multicast,
		"[2002:a9fe:a9fe::1]:80":      LinkLocal,
		"[2002:c0a8:101::1]:80":       Private,
		"[2002:7f00:1::1]:80":         Loopback,
		"[2002:808:404::1]:80":        OwnAddress,
		"[2001:0:4136:e378::3fff]:80": Reserved, // Teredo with a server and a client in it
		"[2001:20::1]:80":             Reserved,
		"[5f00::1]:80":                Reserved,
		"[64:ff9b:1::c0a8:101]:80":    Private,
		"192.0.0.170:80":              Reserved,
	} {
		err := p.Check(netip.MustParseAddrPort(server))
		var denied *Denied
		if errors.As(err, &denied); denied == nil && want != 0 || denied != nil && denied.Reason != want {
			t.Errorf("%s: got %v, want reason %q", server, err, want)
		}
		if denied != nil && (!strings.Contains(err.Error(), want.String()) || want.String() == "") {
			t.Errorf("%s: the error does not tell the reason: %v", server, err)
		}
	}
}

// An invalid address is denied.
func TestInvalidServer(t *testing.T) {
	p, err := New(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.Check(netip.AddrPortFrom(netip.Addr{}, 443)) == nil {
		t.Error("it is open")
	}
}

func TestMostSpecificPrefixDecides(t *testing.T) {
	p, err := New(prefixes(t, "10.0.0.0/8", "192.168.0.0/16", "fd00::/8", "1.1.1.0/24"),
		prefixes(t, "10.1.0.0/16", "192.168.0.0/16", "1.1.0.0/16", "9.9.9.9/32"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for server, allowed := range map[string]bool{
		"10.0.0.1:80":           true,
		"10.1.0.1:80":           false,
		"192.168.0.1:80":        false, // of equals, the denial
		"[fd00::1]:80":          true,
		"[fc00::1]:80":          false,
		"1.1.1.1:80":            true,
		"1.1.2.1:80":            false,
		"9.9.9.9:80":            false,
		"[64:ff9b::909:909]:80": false, // the same server in another form
		"[2002:a00:1::]:80":     true,
		"1.2.3.4:25":            true, // no port is denied here
	} {
		if err := p.Check(netip.MustParseAddrPort(server)); (err == nil) != allowed {
			t.Errorf("%s: got %v, want allowed %v", server, err, allowed)
		}
	}
}

// With everything denied, exactly what is allowed is open: the defaults do not count as more specific.
func TestNothingButWhatIsAllowed(t *testing.T) {
	p, err := New(prefixes(t, "1.1.1.0/24", "2606:4700::/32"), prefixes(t, "0.0.0.0/0", "::/0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for server, allowed := range map[string]bool{
		"1.1.1.1:80":              true,
		"[2606:4700::1111]:80":    true,
		"1.1.2.1:80":              false,
		"10.0.0.1:80":             false,
		"[2a00::1]:80":            false,
		"[64:ff9b::101:101]:80":   false, // the translator's addresses are not among those allowed
		"[64:ff9b::102:304]:80":   false,
		"[2002:101:101::]:80":     false,
		"[fd00::1]:80":            false,
		"[2606:4700:0:1::1]:8443": true,
	} {
		if err := p.Check(netip.MustParseAddrPort(server)); (err == nil) != allowed {
			t.Errorf("%s: got %v, want allowed %v", server, err, allowed)
		}
	}
}

// A wide permission does not open special addresses.
func TestWidePermission(t *testing.T) {
	p, err := New(prefixes(t, "0.0.0.0/0", "::/0", "10.0.0.0/7"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"10.0.0.1:80", "192.168.0.1:80", "[fd00::1]:80", "[fe80::1]:80"} {
		if p.Check(netip.MustParseAddrPort(server)) == nil {
			t.Errorf("%s is open", server)
		}
	}
}

func TestAllowCannotOpenWhatIsNeverOpen(t *testing.T) {
	for _, allow := range []string{"127.0.0.0/8", "127.0.0.1/32", "224.0.0.0/24", "::1/128", "ff02::/16", "0.0.0.0/32", "255.255.255.255/32"} {
		if _, err := New(prefixes(t, allow), nil, nil); err == nil {
			t.Errorf("allow %s was accepted", allow)
		}
	}
	// A wide prefix is fine and opens all but these.
	p, err := New(prefixes(t, "0.0.0.0/0", "::/0", "128.0.0.0/1"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"127.0.0.1:80", "224.0.0.1:80", "[::1]:80", "[ff02::1]:80", "0.0.0.0:80", "255.255.255.255:80"} {
		if p.Check(netip.MustParseAddrPort(server)) == nil {
			t.Errorf("%s is open", server)
		}
	}
}

func TestNeverOpensOwnOrLoopback(t *testing.T) {
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr")
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), rapid.IntRange(0, 32).Draw(t, "bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		allow := rapid.SliceOf(prefix).Draw(t, "allow")
		deny := rapid.SliceOf(prefix).Draw(t, "deny")
		p, err := New(allow, deny, nil)
		if err != nil {
			return
		}
		b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "server")
		addr := netip.AddrFrom4([4]byte(b))
		isOwn := rapid.Bool().Draw(t, "own")
		if isOwn {
			p = p.Around(Surroundings{Own: []netip.Addr{addr}})
		}
		got := p.Check(netip.AddrPortFrom(addr, 443))
		mustDeny := isOwn || addr.IsLoopback() || addr.IsMulticast() || addr.IsUnspecified()
		if mustDeny && got == nil {
			t.Fatalf("%v is open", addr)
		}
		for _, d := range deny {
			if d.Bits() == 32 && d.Contains(addr) && got == nil {
				t.Fatalf("%v is open though denied by itself", addr)
			}
		}
	})
}
