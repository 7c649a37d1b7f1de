package client

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/path"
)

// joining returns a host whose kernel takes eight subflows of each connection, and a function that joins from certain ports.
func joining(t *testing.T) (kernel *mptcptest.Fake, join func(a path.CreateSubflow, from sources) uint16) {
	t.Helper()
	kernel = mptcptest.New()
	kernel.SetUserspacePM(true)
	kernel.SetServerLimit(8)
	picker, err := newPortPicker()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{kernel: kernel, ports: picker}
	return kernel, func(a path.CreateSubflow, from sources) uint16 {
		t.Helper()
		local, err := h.join(a, from, func(netip.AddrPort) error { return nil }, func(netip.AddrPort) {})
		if err != nil {
			t.Fatal(err)
		}
		return local.Port()
	}
}

// A second connection has a subflow on each path at once, although the first ports of all paths are those of the first
// connection, or of another program.
func TestPortsOfTwoConnections(t *testing.T) {
	kernel, join := joining(t)
	local, server := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("192.0.2.1:443")
	kernel.Occupy(netip.AddrPortFrom(local, 62001))
	kernel.Occupy(netip.AddrPortFrom(local, 63000))
	var got [2][]uint16
	for k := range got {
		token := path.Token(kernel.Connect(local, server))
		for i, ports := range [][]uint16{{61000, 61001, 61002}, {62000, 62001, 62002}, {63000, 63001, 63002}} {
			got[k] = append(got[k], join(path.CreateSubflow{
				Token: token, LocalID: uint8(i + 1), Local: local, Remote: server, Server: server, Kind: path.Port,
			}, sources{ports, true}))
		}
	}
	if !slices.Equal(got[0], []uint16{61000, 62000, 63001}) || !slices.Equal(got[1], []uint16{61001, 62002, 63002}) {
		t.Errorf("ports %v", got)
	}
}

// A detour comes from a port that was chosen, and from any other if these are taken.
func TestPortsOfDetours(t *testing.T) {
	kernel, join := joining(t)
	local, server := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("192.0.2.1:443")
	kernel.Occupy(netip.AddrPortFrom(local, 61000))
	for i, chosen := range []bool{true, false} {
		from := join(path.CreateSubflow{
			Token: path.Token(kernel.Connect(local, server)), LocalID: uint8(i + 1), Local: local,
			Kind: path.Mapped, Waypoint: "bob", Remote: netip.MustParseAddrPort("198.51.100.7:40000"), Server: server,
		}, sources{first: []uint16{61000, 61001}})
		if (from == 61001) != chosen {
			t.Errorf("subflow %d from port %d", i+1, from)
		}
	}
}
