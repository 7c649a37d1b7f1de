package path

import (
	"net/netip"
	"testing"
	"time"
)

func TestSpared(t *testing.T) {
	var s spared
	now := time.Unix(1000, 0)
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port) }
	s.add(at(1), now)
	s.add(at(2), now)
	if s.take(at(3), now) || !s.take(at(1), now) {
		t.Error("another address was spared than the one that was to be")
	}
	if s.take(at(1), now) {
		t.Error("an address was spared twice: its port may belong to another program by now")
	}
	if s.take(at(2), now.Add(spareFor)) || len(s) != 0 {
		t.Errorf("after %v %d addresses are remembered", spareFor, len(s))
	}
	for port := range uint16(2 * maxSpared) {
		s.add(at(port+1), now)
	}
	if len(s) != maxSpared || s.take(at(1), now) || !s.take(at(2*maxSpared), now) {
		t.Errorf("%d addresses are remembered, at most %d may be, the latest", len(s), maxSpared)
	}
}
