package path

import (
	"net/netip"
	"slices"
	"time"
)

// Spare has the connection that a program is about to make from a local address get no detours.
type Spare struct{ Local netip.AddrPort }

func (Spare) event() {}

const (
	// spareFor is the time within which the connection must be established.
	spareFor = time.Minute
	// maxSpared bounds what is remembered; the oldest is forgotten.
	maxSpared = 256
)

// spared has the local addresses of connections to come that get no detours, the oldest first.
type spared []sparedAddr

type sparedAddr struct {
	local netip.AddrPort
	until time.Time
}

func (s *spared) add(local netip.AddrPort, now time.Time) {
	s.take(local, now)
	if len(*s) == maxSpared {
		*s = slices.Delete(*s, 0, 1)
	}
	*s = append(*s, sparedAddr{local, now.Add(spareFor)})
}

// take reports whether a connection from the address is to be spared, and forgets the address.
func (s *spared) take(local netip.AddrPort, now time.Time) (found bool) {
	*s = slices.DeleteFunc(*s, func(a sparedAddr) bool {
		found = found || a.local == local && now.Before(a.until)
		return a.local == local || !now.Before(a.until)
	})
	return found
}
