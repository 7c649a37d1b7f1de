package nat

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// possible reports whether a way can be opened between two ends that learn each other's address and send at the same
// time.
func possible(a, b Found) bool { return getsIn(a, b) || getsIn(b, a) }

// getsIn reports whether packets from one end reach another end that has sent to it. After that, each end knows where
// to send.
func getsIn(from, to Found) bool {
	switch {
	case to.Mapping == Dependent: // its address as this end would see it is unknown
		return false
	case to.Filtering == PassesAll, to.Filtering == PassesAddresses, to.Filtering == PassesSome:
		return true
	}
	// It must have sent to the port from which the packets come, which is possible only if that port is known.
	return from.Mapping != Dependent
}

// Knocking opens a way between two boxes wherever that is possible.
func TestKnock(t *testing.T) {
	for _, a := range boxes() {
		for _, b := range boxes() {
			t.Run(a.Kind()+" and "+b.Kind(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					here, there, observer := w.add("203.0.113.1", a), w.add("203.0.113.2", b), w.add("198.51.100.1", open)
					// For a symmetric NAT, the reported address is right, but not the port.
					seenHere, err := here.Ask(t.Context(), observer.at())
					if err != nil {
						t.Fatal(err)
					}
					seenThere, err := there.Ask(t.Context(), observer.at())
					if err != nil {
						t.Fatal(err)
					}
					id := stun.NewID()
					met := make(chan bool, 2)
					knock := func(h *host, at netip.AddrPort, late time.Duration) {
						time.Sleep(late)
						from, err := h.Knock(t.Context(), []netip.AddrPort{at}, id)
						if err != nil && !errors.Is(err, ErrNoAnswer) {
							t.Error(err)
						}
						if err == nil {
							// Now packets pass in both directions.
							_, err = h.Ask(t.Context(), from)
						}
						met <- err == nil
					}
					go knock(here, seenThere, 0)
					go knock(there, seenHere, 700*time.Millisecond)
					one, two := <-met, <-met
					if got, want := one || two, possible(a, b); got != want {
						t.Errorf("they met: %v, want %v", got, want)
					}
				})
			})
		}
	}
}

// Knocking takes few packets, and stops when it should.
func TestKnockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.add("203.0.113.1", open)
		var places []netip.AddrPort
		for i := range 2 * maxPlaces {
			places = append(places, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 1))
		}
		begin := time.Now()
		if _, err := h.Knock(t.Context(), places, stun.NewID()); !errors.Is(err, ErrNoAnswer) {
			t.Error(err)
		}
		if took := time.Since(begin); took != knocksLast {
			t.Errorf("it took %v", took)
		}
		if n := len(h.sends[port]); n != maxPlaces*len(knocks) {
			t.Errorf("%d packets", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.Knock(ctx, places, stun.NewID()); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
