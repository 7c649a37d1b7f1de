package netstate

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addrs(list []Address) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.Addr.String())
	}
	slices.Sort(out)
	return out
}

func twoHosts(t *testing.T) (a, b *netnstest.NS) {
	t.Helper()
	a, b = netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t,
		netnstest.End{NS: a, Name: "eth0", Addresses: []string{"10.1.0.1/24", "fd01::1/64"}},
		netnstest.End{NS: b, Name: "eth0", Addresses: []string{"10.1.0.2/24", "fd01::2/64"}})
	return a, b
}

func TestAddresses(t *testing.T) {
	ns, _ := twoHosts(t)
	ns.Output(t, "ip", "address", "add", "10.1.0.3/24", "dev", "eth0", "preferred_lft", "0") // deprecated
	ns.Output(t, "ip", "link", "add", "down0", "type", "veth", "peer", "name", "down1")
	ns.Output(t, "ip", "address", "add", "10.9.0.1/24", "dev", "down0")
	var handle *Addresses
	ns.Must(t, func() (err error) { handle, err = OpenAddresses(); return err })
	defer handle.Close()

	usable, err := handle.Usable()
	if got := addrs(usable); err != nil || !slices.Equal(got, []string{"10.1.0.1", "fd01::1"}) {
		t.Errorf("usable %v, %v", got, err)
	}
	own, err := handle.Own()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"127.0.0.1", "::1", "10.1.0.1", "10.1.0.3", "fd01::1"} {
		if !slices.Contains(addrs(own), want) {
			t.Errorf("own %v lack %s", addrs(own), want)
		}
	}
	for dst, want := range map[string]string{"10.1.0.2": "10.1.0.1", "fd01::2": "fd01::1", "127.0.0.1": "127.0.0.1"} {
		src, err := handle.SourceFor(netip.MustParseAddr(dst))
		if err != nil || src.Addr.String() != want || (dst == "10.1.0.2" && src.IfIndex != usable[0].IfIndex) {
			t.Errorf("to %s from %+v, %v", dst, src, err)
		}
	}
	if src, err := handle.SourceFor(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Errorf("without a route from %+v", src)
	}
}

func TestWatchAddresses(t *testing.T) {
	ns, _ := twoHosts(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var changes <-chan []Address
	ns.Must(t, func() (err error) { changes, err = WatchAddresses(ctx); return err })
	until := func(what string, want ...string) {
		t.Helper()
		timeout := time.After(20 * time.Second)
		for {
			select {
			case set := <-changes:
				if slices.Equal(addrs(set), want) {
					return
				}
			case <-timeout:
				t.Fatalf("never: %s", what)
			}
		}
	}
	until("the first set", "10.1.0.1", "fd01::1")
	ns.Output(t, "ip", "address", "add", "10.1.0.7/24", "dev", "eth0")
	until("an address more", "10.1.0.1", "10.1.0.7", "fd01::1")
	ns.Output(t, "ip", "route", "add", "default", "via", "10.1.0.2")
	until("a route more", "10.1.0.1", "10.1.0.7", "fd01::1")
	ns.Output(t, "ip", "address", "del", "10.1.0.1/24", "dev", "eth0")
	until("an address less", "fd01::1") // with the primary one its secondary goes
	ns.Output(t, "ip", "link", "set", "eth0", "down")
	until("the interface down")
	cancel()
	for range changes { // closes
	}
}

func TestListeners(t *testing.T) {
	ns := netnstest.New(t)
	four := netip.MustParseAddrPort(ns.Listen(t, "127.0.0.1:0").Addr().String()) // MPTCP, as Go does since 1.24
	six := netip.MustParseAddrPort(ns.Listen(t, "[::1]:0").Addr().String())
	wild := netip.MustParseAddrPort(ns.Listen(t, "0.0.0.0:0").Addr().String())
	var l *Listeners
	ns.Must(t, func() (err error) { l, err = OpenListeners(); return err })
	defer l.Close()
	for range 2 {
		got, err := l.TCP()
		if err != nil || len(got) != 3 {
			t.Errorf("got %v, %v", got, err)
		}
		for _, want := range []netip.AddrPort{four, six, wild} {
			if !slices.Contains(got, want) {
				t.Errorf("%v lack %v", got, want)
			}
		}
	}
}

func FuzzDecodeListener(f *testing.F) {
	f.Add(make([]byte, inetDiagMsgSize))
	f.Add([]byte{2, 10})
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := decodeListener(b); ok && !a.Addr().IsValid() {
			t.Errorf("%x: %v", b, a)
		}
	})
}
