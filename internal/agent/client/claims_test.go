package client

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// gossiping is a directory in which one member says something.
type gossiping struct {
	Directory
	asked [][]string
	told  []claim.Claim // in the last exchange
	heard []claim.Heard
	err   error
}

func (g *gossiping) ExchangeClaims(_ context.Context, own []claim.Claim, about []string) ([]claim.Heard, error) {
	g.asked, g.told = append(g.asked, about), own
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
		c.inbox.wait()
		select {
		case f := <-c.inbox.calls:
			f(at)
		default:
		}
	}
	if len(g.asked) != 4 || !slices.Equal(g.asked[0], []string{"bob"}) {
		t.Errorf("asked: %v", g.asked)
	}
	x := c.manager.Explain(server, netip.Addr{}, now.Add(25*time.Minute))
	if len(x.Candidates) != 1 || x.Candidates[0].Claimed.Goodput != 5 {
		t.Errorf("%+v", x.Candidates)
	}
	if d := describeClaimed(x.Candidates[0].Claimed); d == nil || d.Goodput != "64 to 256 Mbit/s" || d.Loss != "below 0.5 %" || d.Proven {
		t.Errorf("%+v", d)
	}
	g.err = context.Canceled // the agent stops
	c.exchange = exchange{at: now}
	c.exchangeClaims(t.Context(), now.Add(time.Hour))
	c.inbox.wait()
	(<-c.inbox.calls)(now)
	if c.exchange.going {
		t.Error("it is never exchanged again")
	}
}

// What this host measured is published unless the operator does not want that, which can change while the agent runs.
func TestPublishingIsSwitched(t *testing.T) {
	now := time.Now()
	c, _ := toldClient()
	g := &gossiping{}
	c.config.Directory = g
	memory := path.Memory{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for _, network := range []string{"198.51.100.0/24", "203.0.113.0/24", "192.0.2.0/24"} {
		memory.Trails = append(memory.Trails, path.Trail{Waypoint: "bob", Network: netip.MustParsePrefix(network), At: now, Packets: path.EnoughPackets})
	}
	c.manager = path.New(path.Config{Policy: policy.Detours{Subflows: 2}, Memory: memory})
	c.manager.Handle(path.LocalAddrs{Addrs: memory.Addrs}, now)
	for i, publish := range []bool{false, true, false} {
		g.told = nil
		reloaded := make(chan error, 1)
		go func() {
			reloaded <- c.Reconfigure(t.Context(), config.Client{}, config.Client{PublishMeasurements: publish})
		}()
		(<-c.inbox.calls)(now)
		if err := <-reloaded; err != nil {
			t.Fatal(err)
		}
		c.exchange.at = now
		c.exchangeClaims(t.Context(), now)
		c.inbox.wait()
		(<-c.inbox.calls)(now)
		if len(g.asked) != i+1 || (len(g.told) == 1) != publish {
			t.Errorf("publish_measurements = %v: after %d exchanges, told %+v", publish, len(g.asked), g.told)
		}
	}
}
