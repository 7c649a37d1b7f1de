package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
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

// What the client has measured outlives a container and a new temporary address. It does not count on another network.
func TestMeasurementsOutliveContainer(t *testing.T) {
	w := standard(newWorld(t))
	network, err := w.addr4(server).Prefix(24)
	if err != nil {
		t.Fatal(err)
	}
	w.remembers(alice, map[string]float64{bob: 0.001}, network.String())
	w.startBoth()
	measured := func() bool {
		// Detours to the server are asked for when a connection begins. It carries too little to measure them.
		w.dcol(alice, "run", "--", "curl", "--silent", "--fail", "--range", "0-1000", "--output", "/dev/null", w.url())
		var why api.Why
		said := w.dcol(alice, "why", w.addr4(server).String()+":80", "--json")
		if err := json.Unmarshal([]byte(said), &why); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(why.Candidates, func(c api.Candidate) bool { return c.Waypoint == bob && c.Measured.Packets > 1000 })
	}
	w.eventually("the detour through bob counts as measured", func() error { return holds(measured(), "it does not") })
	addr6 := w.addr6(alice).As16()
	addr6[15] ^= 0x77
	at := w.host(alice).Interface(alice)
	for _, line := range []string{
		"link add docker0 type bridge", "address add 172.17.0.1/16 dev docker0", "link set docker0 up",
		"link add veth0 type veth peer name veth1", "link set veth1 up", "link set veth0 up", "address add fe80::1/64 dev veth0",
		"address add 10.9.0.1/24 dev veth0", "address add " + netip.AddrFrom16(addr6).String() + "/64 dev " + at,
	} {
		w.run(alice, append([]string{"ip"}, strings.Fields(line)...)...)
	}
	time.Sleep(time.Second) // else the agent might not have noticed yet
	if !measured() {
		t.Error("a container made the client forget")
	}
	w.renumber("10.200.0", 0)
	w.eventually("the client is on another network", func() error { return holds(!measured(), "the measurement still counts") })
}
