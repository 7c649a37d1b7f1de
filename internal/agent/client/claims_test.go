package client

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
)

// gossiping is a directory in which one member says something.
type gossiping struct {
	Directory
	asked [][]string
	heard []claim.Heard
	err   error
}

func (g *gossiping) ExchangeClaims(_ context.Context, _ []claim.Claim, about []string) ([]claim.Heard, error) {
	g.asked = append(g.asked, about)
	return g.heard, g.err
}

// What members measured is asked for twice soon after the start, then every ten minutes, and reaches the path manager.
func TestClaimsAreExchanged(t *testing.T) {
	now := time.Now()
	bob := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}
	c, _ := toldClient(bob)
	c.roster.using["bob"] = &usedWaypoint{vias: []detour.Via{bob}}
	g := &gossiping{heard: []claim.Heard{{Member: "carol", At: now, Claims: []claim.Claim{{Waypoint: "bob", Loss: 1, Goodput: 5}}}}}
	c.config.Directory = g
	server := netip.MustParseAddrPort("203.0.113.5:80")
	c.manager.Handle(path.LocalAddrs{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, now)
	c.manager.Handle(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(bob.Addr, 0)}}, now)
	for second := range 25 * 60 {
		at := now.Add(time.Duration(second) * time.Second)
		c.exchangeClaims(t.Context(), at)
		c.requests.Wait()
		select {
		case f := <-c.inbox:
			f(at)
		default:
		}
	}
	if len(g.asked) != 4 || !slices.Equal(g.asked[0], []string{"bob"}) {
		t.Errorf("asked: %v", g.asked)
	}
	x := c.manager.Explain(server, now.Add(25*time.Minute))
	if len(x.Candidates) != 1 || x.Candidates[0].Claimed.Goodput != 5 {
		t.Errorf("%+v", x.Candidates)
	}
	if d := describeClaimed(x.Candidates[0].Claimed); d == nil || d.Goodput != "64 to 256 Mbit/s" || d.Loss != "below 0.5 %" || d.Proven {
		t.Errorf("%+v", d)
	}
	g.err = context.Canceled // the agent stops
	c.exchange = exchange{at: now}
	c.exchangeClaims(t.Context(), now.Add(time.Hour))
	c.requests.Wait()
	(<-c.inbox)(now)
	if c.exchange.going {
		t.Error("it is never exchanged again")
	}
}
