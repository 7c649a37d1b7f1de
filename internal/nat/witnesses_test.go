package nat

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func nobody(string) bool { return false }

// A lying member can add a limited number of addresses, and removes none that another member has reported.
func TestLiarAddsOnly(t *testing.T) {
	var w Witnesses
	truth := netip.MustParseAddr("198.51.100.7")
	w.Hear("honest", truth)
	for i := range 1000 {
		w.Hear("liar", netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
	}
	if told := w.Told(); !slices.Contains(told, truth) || len(told) != 1+maxTold {
		t.Errorf("told %v", told)
	}
	if w.Sure(nobody) {
		t.Error("it is certain although nobody agrees")
	}
	for i := range 10 * maxWitnesses {
		w.Hear(fmt.Sprint("member", i), truth)
		w.Hear("honest", truth)
	}
	if told := w.Told(); len(told) > maxWitnesses*maxTold {
		t.Errorf("%d are remembered", len(told))
	}
}

// An address is certain if two members agree, or a trusted one reports it.
func TestSure(t *testing.T) {
	var w Witnesses
	one, other := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.9")
	w.Hear("alice", one)
	w.Hear("alice", one)
	w.Hear("alice", other)
	w.Hear("bob", netip.MustParseAddr("192.168.1.2"))
	w.Hear("carol", netip.MustParseAddr("192.168.1.2"))
	w.Hear("carol", netip.MustParseAddr("2a00::1"))
	w.Hear("bob", netip.MustParseAddr("2a00::1"))
	if w.Sure(nobody) {
		t.Error("one member is enough")
	}
	if !w.Sure(func(m string) bool { return m == "alice" }) {
		t.Error("a trusted member is not enough")
	}
	w.Hear("bob", other)
	if !w.Sure(nobody) {
		t.Error("two that agree are not enough")
	}
}
