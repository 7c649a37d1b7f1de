package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// attack carries out what a lying member or a stranger does.
func (s *injector) attack(ctx context.Context, f plan.Fault, k *Strike) error {
	at := s.w.Host(k.Hit).Addr()
	switch f.Kind {
	case plan.ForgeSYN:
		return attack.ForgeSYNs(s.raw, s.seenAs(), s.guardedPorts(k.Hit))
	case plan.BlindRST:
		flows, err := s.flowsAt(k.Hit)
		if err == nil && len(flows) == 0 {
			k.miss("no detour leads through it")
		}
		return errors.Join(err, attack.BlindRSTs(s.raw, flows))
	case plan.Scan:
		return s.scan(ctx, k, at, f.For.Std())
	case plan.AskTunnels:
		return s.askTunnels(ctx, k, f.For.Std())
	case plan.Flood:
		return s.flood(ctx, at, f.For.Std())
	}
	return fmt.Errorf("there is no such attack")
}

// seenAs returns the client's address as others see it.
func (s *injector) seenAs() netip.Addr {
	if !s.w.plan.NAT {
		return s.w.client()
	}
	return s.w.on(home, accessLink)
}

// flowsAt returns the connections between the client and a waypoint. A NAT changes their
// ports, which a stranger cannot know.
func (s *injector) flowsAt(waypoint string) (flows []attack.Flow, err error) {
	at := s.w.Host(waypoint).Addr()
	err = s.inspect.eachSubflow(func(p mptcp.Subflow) {
		if p.Remote.Addr() == at {
			from := netip.AddrPortFrom(s.seenAs(), p.Local.Port())
			flows = append(flows, attack.Flow{From: from, To: p.Remote}, attack.Flow{From: p.Remote, To: from})
		}
	})
	return flows, err
}

// guardedPorts returns the ports of a waypoint that receive in-band SYNs: those of servers.
func (s *injector) guardedPorts(waypoint string) (ports []netip.AddrPort) {
	for _, stream := range s.w.plan.Streams {
		at := netip.AddrPortFrom(s.w.Host(waypoint).Addr(), stream.Port)
		if !slices.Contains(ports, at) {
			ports = append(ports, at)
		}
	}
	return ports
}

// member runs mallory's process and calls a method of it. Its session with a waypoint lasts until end is called. A
// waypoint that has other faults may refuse the session. Then reply does not change.
func (s *injector) member(ctx context.Context, waypoint, method string, args, reply any) (end func(), err error) {
	p, client, err := s.w.StartRemote(ctx, mallory, "member", s.w.Part(attack.MemberPart, &attack.Member{
		Identity: crew.IdentityDir(s.w.plan.Coordinator), Waypoint: waypoint, At: s.w.Host(waypoint).Addr(),
	})...)
	if err != nil {
		return nil, err
	}
	if err := client.Call(method, args, reply); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		p.Kill()
		return nil, fmt.Errorf("have mallory ask %s: %w", waypoint, err)
	}
	return p.Kill, nil
}

// Bounds of what one member may have of a waypoint (docs/security.md): for connections, with room for others' joins and
// for times that are not exact.
const (
	mostTunnels     = 8
	scanBurst       = 400
	scanConnections = 150 // a second
)

// scan opens connections to the server through a waypoint, as fast as it can, and tries what the policy denies.
func (s *injector) scan(ctx context.Context, k *Strike, at netip.Addr, d time.Duration) error {
	to := s.w.Host(server).Addr()
	allowed := netip.AddrPortFrom(to, s.w.plan.Streams[0].Port)
	loopback := netip.MustParseAddr("127.0.0.1")
	if to.Is6() {
		loopback = netip.IPv6Loopback()
	}
	servers := []netip.AddrPort{
		allowed, netip.AddrPortFrom(to, smtp), netip.AddrPortFrom(s.w.forbidden(), 80),
		netip.AddrPortFrom(s.w.on(near, inLink(k.Hit)), 80), netip.AddrPortFrom(at, 22), netip.AddrPortFrom(loopback, 22),
	}
	var granted map[netip.AddrPort]uint16
	end, err := s.member(ctx, k.Hit, "Map", servers, &granted)
	if err != nil {
		return err
	}
	defer end()
	var ports []netip.AddrPort
	for server, port := range granted {
		ports = append(ports, netip.AddrPortFrom(at, port))
		if server != allowed {
			s.excess.add("%s granted a mapping to %s, which its policy denies", k.Hit, server)
		}
	}
	if len(ports) == 0 {
		k.miss("mallory got no mapping")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	sent, err := attack.Scan(ctx, s.raw, s.w.Host(mallory).Addr(), ports)
	k.Note = fmt.Sprintf("%d SYNs sent", sent)
	return err
}

// askTunnels asks for as many tunnels as there are.
func (s *injector) askTunnels(ctx context.Context, k *Strike, d time.Duration) error {
	granted := 0
	end, err := s.member(ctx, k.Hit, "AskTunnels", d, &granted)
	if err != nil {
		return err
	}
	end()
	k.Note = fmt.Sprintf("%d tunnels granted", granted)
	if granted == 0 {
		k.miss("mallory got no tunnel")
	}
	if granted > mostTunnels {
		s.excess.add("%s granted a member %d tunnels", k.Hit, granted)
	}
	return nil
}

// flood sends noise to the sessions' port, and SYNs to all ports.
func (s *injector) flood(ctx context.Context, at netip.Addr, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	conn, err := testbed.On(s.w.Host(mallory), func() (*net.UDPConn, error) { return net.ListenUDP("udp", nil) })
	if err != nil {
		return err
	}
	defer conn.Close()
	noise := make([]byte, 1200)
	for ctx.Err() == nil {
		for range 10 {
			for i := range noise {
				noise[i] = byte(rand.Uint32())
			}
			_, _ = conn.WriteToUDPAddrPort(noise[:1+rand.IntN(len(noise))], netip.AddrPortFrom(at, crew.SessionPort)) // lost like any other
			from := netip.AddrPortFrom(s.w.Host(mallory).Addr(), uint16(1024+rand.IntN(60000)))
			to := netip.AddrPortFrom(at, uint16(1+rand.IntN(65535)))
			if err := s.raw.Send(attack.Segment{From: from, To: to, Seq: rand.Uint32(), Flags: packet.SYN, Window: 1024}); err != nil {
				return err
			}
		}
		pause(ctx, 20*time.Millisecond)
	}
	return nil
}
