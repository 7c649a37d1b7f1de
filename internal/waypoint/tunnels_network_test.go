package waypoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// A veth pair stands for a tunnel: packets leave one like the other.
const tunnelName = "dcolwg"

var (
	tunnel4, tunnel6   = netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd77::2")
	gateway4, gateway6 = netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd77::1")
)

// startTunnel is a waypoint with a tunnel to the client, through which all goes that the client sends
// from its addresses there.
func startTunnel(t *testing.T) (*network, *Waypoint) {
	t.Helper()
	n := newNetwork(t)
	w := n.startTunnel(t)
	return n, w
}

// startTunnel is startTunnel in a network that there is.
func (n *network) startTunnel(t *testing.T) *Waypoint {
	t.Helper()
	n.joinTunnel(t)
	n.waypoint.Output(t, "ip", "route", "add", "default", "via", "10.2.0.1")
	n.config.Allow = append(n.config.Allow, netip.MustParsePrefix("10.0.0.0/8")) // the tunnel's subnet as well
	n.config.DenyPorts = []uint16{25}
	w, _ := n.start(t)
	if err := w.SetTunnelInterfaces([]string{tunnelName}); err != nil {
		t.Fatal(err)
	}
	admit(t, w, time.Minute)
	return w
}

// joinTunnel adds a link between client and waypoint that stands for a tunnel, by which the client reaches all
// that it is not in a network with.
func (n *network) joinTunnel(t *testing.T) {
	t.Helper()
	n.join(t, tunnelName, "10.77.0.2/24", "10.77.0.1/24")
	n.client.Output(t, "ip", "address", "add", "10.77.0.3/24", "dev", tunnelName)
	n.client.Output(t, "ip", "address", "add", "fd77::2/64", "dev", tunnelName, "nodad")
	n.waypoint.Output(t, "ip", "address", "add", "fd77::1/64", "dev", tunnelName, "nodad")
	n.client.Output(t, "sh", "-c", "ip route add default via 10.77.0.1; ip -6 route add default via fd77::1")
	// A tunnel has no neighbours to be found.
	n.client.Output(t, "ip", "neighbour", "add", "fd77::1", "lladdr", hardware(t, n.waypoint), "dev", tunnelName)
	n.waypoint.Output(t, "ip", "neighbour", "add", "fd77::2", "lladdr", hardware(t, n.client), "dev", tunnelName)
}

// hardware is the address of a host's end of the tunnel.
func hardware(t *testing.T, ns *netnstest.NS) string {
	t.Helper()
	fields := strings.Fields(ns.Output(t, "ip", "-brief", "link", "show", "dev", tunnelName))
	return fields[2]
}

func admit(t *testing.T, w *Waypoint, lease time.Duration) {
	t.Helper()
	refusal := w.AdmitTunnel(t.Context(), overSession("alice", client4, 1), wire.WireGuard, []netip.Addr{tunnel4, tunnel6}, lease)
	if refusal != nil {
		t.Fatal(refusal)
	}
}

// from dials from an address of the client.
func (n *network) from(t *testing.T, local netip.Addr, to netip.AddrPort) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var c net.Conn
	err := n.client.Do(func() (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local.AsSlice()}}
		d.SetMultipathTCP(false)
		c, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// sendPing sends an ICMP echo request; its sender waits for the answer.
func (n *network) sendPing(t *testing.T, from, to netip.Addr) net.PacketConn {
	t.Helper()
	protocol, request := "ip4:icmp", []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}
	if from.Is6() {
		protocol, request = "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0x12, 0x34, 0, 1} // whose checksum is the kernel's part
	} else {
		binary.BigEndian.PutUint16(request[2:], ^packet.Sum(request, 0))
	}
	var c net.PacketConn
	n.client.Must(t, func() (err error) {
		if c, err = net.ListenPacket(protocol, from.String()); err == nil {
			_, err = c.WriteTo(request, &net.IPAddr{IP: to.AsSlice()})
		}
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ping wants an answer.
func (n *network) ping(t *testing.T, from, to netip.Addr) {
	t.Helper()
	c := n.sendPing(t, from, to)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	answer := make([]byte, 100)
	for {
		size, peer, err := c.ReadFrom(answer)
		if err != nil {
			t.Fatalf("ping from %v to %v: %v", from, to, err)
		}
		// Types of echo replies (RFC 792, RFC 4443).
		if kind := answer[0]; size >= 8 && peer.String() == to.String() && (kind == 0 || kind == 129) {
			return
		}
	}
}

// bindTo keeps a socket to one interface, whatever the routes.
func bindTo(name string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) { inner = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, name) })
		return errors.Join(err, inner)
	}
}

// dropped counts packets that a chain's last rule dropped.
func (n *network) dropped(t *testing.T, chain string) int {
	t.Helper()
	list := n.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", chain)
	var packets int
	for line := range strings.Lines(list) {
		if at := strings.Index(line, "counter packets "); at >= 0 && strings.Contains(line, "drop") {
			if _, err := fmt.Sscanf(line[at:], "counter packets %d", &packets); err != nil {
				t.Fatal(err)
			}
		}
	}
	return packets
}
