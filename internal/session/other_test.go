package session

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/detour-collective/dcol/internal/nat"
)

// The sessions' port also answers other packets than those of sessions. A session comes from the same external address
// as earlier packets of its socket.
func TestOtherPackets(t *testing.T) {
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	other, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ended := make(chan error)
	go func() { ended <- nat.NewProber(w, other, quiet()).Run(context.Background()) }()

	var tries atomic.Int32
	var seen netip.AddrPort
	refused := errors.New("the bus is away")
	alice := startClientOf(t, ClientConfig{
		Identity: a.identity("alice"), Name: "bob", Addr: w.at,
		Way: func(ctx context.Context, socket *net.UDPConn, to netip.AddrPort) error {
			if tries.Add(1) == 1 {
				return refused
			}
			p, end := nat.Lend(socket, quiet())
			defer end()
			var err error
			seen, err = p.Ask(ctx, to)
			return err
		},
	})
	if p := alice.awaitProblem(NoWay); !errors.Is(p, refused) {
		t.Errorf("the problem is %v", p)
	}
	s := alice.awaitUp()
	if !seen.IsValid() || s.Observed != seen {
		t.Errorf("the socket was seen at %v, the session is at %v", seen, s.Observed)
	}
	alice.mustMap("192.0.2.7:443")

	// The port keeps answering during sessions, and stops with the server.
	socket, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	p, end := nat.Lend(socket, quiet())
	defer end()
	if _, err := p.Ask(t.Context(), w.at); err != nil {
		t.Error(err)
	}
	if trial, err := p.FromOtherPort(t.Context(), w.at); err != nil || trial != nat.Came {
		t.Errorf("from another port: %v, %v", trial, err)
	}
	w.stop()
	if err := <-ended; err != nil {
		t.Errorf("the prober ended with %v", err)
	}
}
