package attack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/remote"
)

// Member is a member that asks a waypoint for more than anybody needs. It is a process of its own, on its own host. The
// methods below Run are called from another process.
type Member struct {
	Identity string // folder with its files
	Waypoint string
	At       netip.Addr // of the waypoint

	ctx     context.Context
	session *session.Client
}

// MemberPart is the program of a Member.
const MemberPart = "lying-member"

// sessionLimit limits how long it may take until there is a session.
const sessionLimit = 10 * time.Second

// Run begins a session, and lets others call the methods below, over in and out, until
// in ends.
func (m *Member) Run(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) error {
	id, err := collective.Load(crew.FilesIn(m.Identity), log)
	if err != nil {
		return err
	}
	m.ctx = ctx
	m.session = session.NewClient(session.ClientConfig{
		Identity: id, Name: m.Waypoint, Addr: netip.AddrPortFrom(m.At, crew.SessionPort), Log: log,
	})
	defer m.session.Close()
	err = crew.Await(ctx, sessionLimit, 20*time.Millisecond, func() error {
		switch state := m.session.State(); {
		case state.Up:
			return nil
		case state.Problem != nil:
			return state.Problem
		}
		return errors.New("there is no answer yet")
	})
	if err != nil {
		return fmt.Errorf("no session with %s: %w", m.Waypoint, err)
	}
	return remote.Serve(m, in, out)
}

// Map asks for mappings to servers. Its reply holds the waypoint's ports of the mappings that were granted, by server.
func (m *Member) Map(servers []netip.AddrPort, ports *map[netip.AddrPort]uint16) error {
	*ports = map[netip.AddrPort]uint16{}
	for _, server := range servers {
		if grant, err := m.session.Map(m.ctx, server, server.Port(), true); err == nil {
			(*ports)[server] = grant.Port
		}
	}
	return nil
}

// AskTunnels asks for tunnels for a time, each with another key, and does not stop when one is refused. Its reply is the
// number that was granted.
func (m *Member) AskTunnels(d time.Duration, granted *int) error {
	ctx, cancel := context.WithTimeout(m.ctx, d)
	defer cancel()
	for ctx.Err() == nil {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
		_, err := m.session.Tunnel(ctx, wire.TunnelRequest{Kind: wire.WireGuard, PublicKey: key})
		var refusal *wire.Refusal
		switch {
		case err == nil:
			*granted++
		case !errors.As(err, &refusal):
			return nil
		}
	}
	return nil
}

// Scan opens connections to ports of a waypoint as fast as it can until ctx ends, and returns how many SYNs it sent.
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
