package attack

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Member is a member that asks a waypoint for more than anybody needs. It is a
// process of its own, on its own host: `dcol-lab chaos member`.
type Member struct {
	Identity string // folder with member.crt, member.key, ca.crt, ca.crl
	Waypoint string
	At       netip.Addr       // of the waypoint
	Map      []netip.AddrPort // servers to ask mappings to
	Tunnels  time.Duration    // how long to ask for tunnels, as many as it gets
	Hold     time.Duration    // how long to keep the session afterwards
	Log      *slog.Logger
}

// Got is what a Member says that it was granted, as JSON on a line.
type Got struct {
	Ports   map[string]uint16 `json:"ports"` // of the waypoint, by server
	Tunnels int               `json:"tunnels"`
}

// sessionLimit is how long a session may take to be there.
const sessionLimit = 10 * time.Second

// Run asks, says what it got, and holds it.
func (m Member) Run(ctx context.Context, out io.Writer) error {
	file := func(name string) string { return filepath.Join(m.Identity, name) }
	id, err := collective.Load(collective.Files{
		Certificate: file("member.crt"), Key: file("member.key"), CA: file("ca.crt"), CRL: file("ca.crl"),
	}, m.Log)
	if err != nil {
		return err
	}
	client, err := m.join(ctx, id)
	if err != nil {
		return err
	}
	defer client.Close()
	got := Got{Ports: map[string]uint16{}}
	for _, server := range m.Map {
		if grant, err := client.Map(ctx, server, server.Port()); err == nil {
			got.Ports[server.String()] = grant.Port
		}
	}
	got.Tunnels = m.askTunnels(ctx, client)
	if err := json.NewEncoder(out).Encode(got); err != nil {
		return err
	}
	select {
	case <-time.After(m.Hold):
	case <-ctx.Done():
	}
	return nil
}

// join waits for a session.
func (m Member) join(ctx context.Context, id *collective.Identity) (*session.Client, error) {
	client := session.NewClient(session.ClientConfig{
		Identity: id, Name: m.Waypoint, Addr: netip.AddrPortFrom(m.At, 45672), Log: m.Log,
	})
	for began := time.Now(); ; {
		s := client.State()
		if s.Problem == nil {
			return client, nil
		}
		if time.Since(began) > sessionLimit || ctx.Err() != nil {
			client.Close()
			return nil, fmt.Errorf("no session with %s: %w", m.Waypoint, s.Problem)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// askTunnels asks for tunnels, each with another key, and returns how many were
// granted. A refusal is no reason to stop.
func (m Member) askTunnels(ctx context.Context, client *session.Client) (granted int) {
	ctx, cancel := context.WithTimeout(ctx, m.Tunnels)
	defer cancel()
	for ctx.Err() == nil {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
		_, err := client.Tunnel(ctx, wire.TunnelRequest{Kind: wire.WireGuard, PublicKey: key})
		var refusal *wire.Refusal
		switch {
		case err == nil:
			granted++
		case !errors.As(err, &refusal):
			return granted
		}
	}
	return granted
}

// Scan opens connections to ports of a waypoint as fast as it can until ctx
// ends, and returns how many SYNs it sent.
func Scan(ctx context.Context, r *Raw, from netip.Addr, to []netip.AddrPort) (int, error) {
	const pause, each = 5 * time.Millisecond, 10
	sent := 0
	for ctx.Err() == nil {
		for range each {
			s := Segment{
				From: netip.AddrPortFrom(from, uint16(1024+mrand.IntN(60000))),
				To:   to[mrand.IntN(len(to))], Seq: mrand.Uint32(), Flags: packet.SYN, Window: 29200,
			}
			if err := r.Send(s); err != nil {
				return sent, err
			}
			sent++
		}
		time.Sleep(pause)
	}
	return sent, nil
}
