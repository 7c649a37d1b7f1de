package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The client's own address changes in mid-transfer, as when it moves to another
// network: its session and its detour follow, and the transfer ends intact.
func TestClientAddressChanges(t *testing.T) { testAddressChange(t, 0) }

// The same, with a while between the networks.
func TestClientAddressChangesSlowly(t *testing.T) { testAddressChange(t, 3*time.Second) }

// Two times, so that both of the server's places are taken by subflows from addresses that are gone.
func TestClientAddressChangesTwice(t *testing.T) { testAddressChanges(t, "mapped", 0, 0) }

func TestClientAddressChangesTwiceInBand(t *testing.T) { testAddressChanges(t, "in-band", 0, 0) }

// With so long without a network in between that the session with the waypoint does not live through it.
func TestClientAddressChangesTwiceSlowly(t *testing.T) {
	testAddressChanges(t, "mapped", 5*time.Second, 5*time.Second)
}

func testAddressChange(t *testing.T, gap time.Duration) { testAddressChanges(t, "mapped", gap) }

// testAddressChanges moves alice after each of the gaps.
func testAddressChanges(t *testing.T, kind string, gaps ...time.Duration) {
	w := withKinds(newWorld(t), kind)
	w.startBoth()
	w.kindIs(kind, "ready")
	x := w.curl(w.url())
	before := w.subflows("direct up", kind+" up")
	x.goesOn()
	for n, gap := range gaps {
		network := fmt.Sprintf("10.200.%d", n)
		w.renumber(network, gap)
		w.eventually("direct path and detour are from the new address", func() error {
			c, err := w.only()
			if err != nil {
				return err
			}
			if c.Token != before.Token {
				t.Fatalf("another connection: %+v", c)
			}
			kinds := map[string]bool{}
			for _, s := range c.Subflows {
				if s.State != "up" || s.Local.Addr().String() != network+".2" {
					return fmt.Errorf("there is %+v", s)
				}
				kinds[s.Kind] = true
			}
			return holds(kinds["direct"] && kinds[kind], "it has only %v", kinds)
		})
		w.waypointUp()
		x.goesOn()
		w.cutFrom(network + ".2")
		x.goesOn() // over the new detour
		w.mend()
	}
	x.endsWell()
	if kind == "mapped" {
		w.dcol(alice, "map", port(w.addr4(server), 81), "--via", bob)
	}
}

// renumber gives alice another address, and none for a while in between.
func (w *world) renumber(prefix string, gap time.Duration) {
	w.Helper()
	w.renumberHost(alice, prefix, gap)
}

func (w *world) renumberHost(host, prefix string, gap time.Duration) {
	w.Helper()
	atHost, atRouter := w.host(host).Interface(host), w.host(router).Interface(host)
	mac := func(host, dev string) string {
		return strings.TrimSpace(w.run(host, "cat", "/sys/class/net/"+dev+"/address"))
	}
	w.run(router, "ip", "addr", "add", prefix+".1/24", "dev", atRouter)
	w.run(router, "ip", "neigh", "replace", prefix+".2", "lladdr", mac(host, atHost), "dev", atRouter, "nud", "permanent")
	w.run(host, "ip", "-4", "addr", "flush", "dev", atHost) // and with it the routes
	time.Sleep(gap)
	w.run(host, "ip", "addr", "add", prefix+".2/24", "dev", atHost)
	w.run(host, "ip", "neigh", "replace", prefix+".1", "lladdr", mac(router, atRouter), "dev", atHost, "nud", "permanent")
	w.run(host, "ip", "route", "add", "default", "via", prefix+".1")
}

// The client has no network for longer than a session lives without one.
func TestClientLosesItsNetwork(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	before := w.detoured()
	w.link(alice, true)
	w.waypointDown("stopped answering")
	w.link(alice, false)
	w.waypointUp()
	x.goesOn()
	after := w.detoured()
	if after.Token != before.Token {
		t.Errorf("another connection: %+v, before %+v", after, before)
	}
	x.endsWell()
}
