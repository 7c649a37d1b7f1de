package path

import (
	"net/netip"
	"slices"
	"time"
)

// Spare announces that a program is about to connect from the address Local, and that this connection is to get no
// detours.
type Spare struct{ Local netip.AddrPort }

func (Spare) event() {}

const (
	// spareFor is the time within which that connection must be established.
	spareFor = time.Minute
	// maxSpared bounds the addresses that are remembered. When there are more, the oldest is forgotten.
	maxSpared = 256
)

// spared holds the addresses of announced connections that get no detours, the oldest first.
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

// take reports whether the connection from an address is to get no detours, and forgets the address.
func (s *spared) take(local netip.AddrPort, now time.Time) (found bool) {
	*s = slices.DeleteFunc(*s, func(a sparedAddr) bool {
		found = found || a.local == local && now.Before(a.until)
		return a.local == local || !now.Before(a.until)
	})
	return found
}
