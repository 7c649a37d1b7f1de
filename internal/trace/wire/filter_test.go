package wire

import (
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/detour-collective/dcol/internal/packet"
)

// The filter hears errors about the destination and what the destination sends, whatever the length of the IP header.
func TestFilter(t *testing.T) {
	for _, test := range []struct{ destination, other, router string }{
		{"192.0.2.7", "192.0.2.8", "198.51.100.1"}, {"2001:db8::7", "2001:db8:0:1::7", "2001:db8::ff"},
	} {
		to, other, router := netip.MustParseAddr(test.destination), netip.MustParseAddr(test.other), netip.MustParseAddr(test.router)
		program := filter6(to)
		if to.Is4() {
			program = filter4(to)
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range []struct {
			name   string
			from   netip.Addr
			quoted netip.Addr
			long   bool
			want   bool
		}{
			{"an error about it", router, to, false, true}, {"an error about another", router, other, false, false},
			{"an error behind IP options", router, to, true, true}, {"one of its own", to, to, false, true},
		} {
			heard, err := vm.Run(icmpError(t, one.from, one.quoted, one.long))
			if err != nil || heard > 0 != one.want {
				t.Errorf("%v, %s: heard %d bytes, %v", to, one.name, heard, err)
			}
		}
	}
}

// icmpError makes what a raw socket of ICMP delivers.
func icmpError(t *testing.T, from, quoted netip.Addr, long bool) []byte {
	t.Helper()
	own := netip.MustParseAddr("198.51.100.9")
	if !from.Is4() {
		own = netip.MustParseAddr("2001:db8::9")
	}
	inner := packet.Segment(netip.AddrPortFrom(own, 1000), netip.AddrPortFrom(quoted, 80), packet.TCP{Flags: packet.SYN}, nil)
	if err := inner.Seal(); err != nil {
		t.Fatal(err)
	}
	icmp := append([]byte{11, 0, 0, 0, 0, 0, 0, 0}, inner.Bytes()...)
	if !from.Is4() {
		icmp[0] = 3
		return icmp
	}
	header := make([]byte, 20)
	header[0] = 0x45
	if long {
		header = make([]byte, 24)
		header[0] = 0x46
	}
	a, b := from.As4(), own.As4()
	copy(header[12:], a[:])
	copy(header[16:], b[:])
	return append(header, icmp...)
}
