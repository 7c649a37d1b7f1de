package netstate

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

// A host answers segments of connections that it does not know by resets, which have no mark. Those to a tunnel's address
// leave by the tunnel from the moment at which the host has the address, and not at all after the tunnel is gone.
func TestAnswersStayInTunnel(t *testing.T) {
	t.Parallel()
	ns := tunnelHost(t)
	ns.Output(t, "nft", `table inet watch {
		chain output {
			type filter hook output priority 300
			oifname "eth0" ip saddr 10.7.0.9 counter name leaked4
			oifname "eth0" ip6 saddr fd07::9 counter name leaked6
		}
		counter leaked4 { }
		counter leaked6 { }
	}`)
	ns.Output(t, "ip", "link", "del", "dcol0")
	for range 20 {
		tun := netnstest.End{NS: ns, Name: "dcol0"}.TUN(t)
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() { stopped <- sendUnknown(tun, stop) }()
		mustSetTunnel(t, ns, clientTunnel("10.7.0.9", "fd07::9"))
		awaitResets(t, tun)
		ns.Must(t, func() error { return RemoveTunnel("dcol0") })
		close(stop)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
	}
	for _, family := range []string{"leaked4", "leaked6"} {
		if got := ns.Output(t, "nft", "list", "counter", "inet", "watch", family); !strings.Contains(got, "packets 0 bytes 0") {
			t.Errorf("answers from the tunnel's address left outside of it:\n%s", got)
		}
	}
}

// sendUnknown delivers segments of unknown connections by a TUN interface until stop is closed. It does not matter whether the
// interface is up, or exists.
func sendUnknown(tun *os.File, stop <-chan struct{}) error {
	var segments [][]byte
	for host, server := range map[string]string{"10.7.0.9": "198.51.100.1", "fd07::9": "2001:db8:1::1"} {
		from, to := netip.AddrPortFrom(netip.MustParseAddr(server), 5124), netip.AddrPortFrom(netip.MustParseAddr(host), 40000)
		p := packet.Segment(from, to, packet.TCP{Seq: 1, Ack: 1, Flags: packet.ACK, Window: 0xffff}, []byte("late"))
		if err := p.Seal(); err != nil {
			return err
		}
		segments = append(segments, p.Bytes())
	}
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		for _, s := range segments {
			if _, err := tun.Write(s); err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EBADFD) {
				return err
			}
		}
	}
}

// awaitResets reads from a TUN interface until resets of both families have left by it.
func awaitResets(t *testing.T, tun *os.File) {
	t.Helper()
	if err := tun.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for seen := make(map[netip.Addr]bool); len(seen) < 2; {
		b := make([]byte, 2000)
		n, err := tun.Read(b)
		if err != nil {
			t.Fatalf("no resets left by the tunnel: %v", err)
		}
		if p, err := packet.Parse(b[:n]); err == nil && p.TCP != nil && p.TCP.Flags&packet.RST != 0 {
			seen[p.From().Addr()] = true
		}
	}
}
