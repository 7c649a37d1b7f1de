package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/testbed"
)

// excess counts what attackers got that they should not have.
type excess struct {
	mu    sync.Mutex
	found []string
}

func (e *excess) add(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.found = append(e.found, fmt.Sprintf(format, args...))
}

// attack carries out what a lying member or a stranger does.
func (s *striker) attack(ctx context.Context, f plan.Fault, k *Strike) error {
	at := s.w.host(k.Hit).Addr4()
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
		return s.askTunnels(ctx, k, at, f.For.Std())
	case plan.Flood:
		return s.flood(ctx, at, f.For.Std())
	}
	return fmt.Errorf("nobody knows how to do that")
}

// seenAs is the client's address as others see it.
func (s *striker) seenAs() netip.Addr {
	if !s.w.plan.NAT {
		return s.w.client()
	}
	v4, _ := s.w.host(home).AddrOn(accessLink)
	return v4
}

// flowsAt are the connections between the client and a waypoint. Behind a NAT
// their ports are others outside, which a stranger cannot know.
func (s *striker) flowsAt(waypoint string) (flows []attack.Flow, err error) {
	at := s.w.host(waypoint).Addr4()
	err = s.w.eachSubflow(func(p mptcp.Subflow) {
		if p.Remote.Addr() == at {
			from := netip.AddrPortFrom(s.seenAs(), p.Local.Port())
			flows = append(flows, attack.Flow{From: from, To: p.Remote}, attack.Flow{From: p.Remote, To: from})
		}
	})
	return flows, err
}

// guardedPorts are those of a waypoint that in-band SYNs come to: servers' own.
func (s *striker) guardedPorts(waypoint string) (ports []netip.AddrPort) {
	for _, stream := range s.w.plan.Streams {
		at := netip.AddrPortFrom(s.w.host(waypoint).Addr4(), stream.Port)
		if !slices.Contains(ports, at) {
			ports = append(ports, at)
		}
	}
	return ports
}

// member runs mallory's process, which asks a waypoint, until its session ends.
// The process has the identity that was copied out of its host.
func (s *striker) member(ctx context.Context, waypoint string, args ...string) (got attack.Got, end func(), err error) {
	argv := append([]string{
		"chaos", "member", "--identity", s.w.identityDir(), "--waypoint", waypoint,
		"--at", s.w.host(waypoint).Addr4().String(),
	}, args...)
	cmd := s.w.host(mallory).Command(ctx, s.w.programs.Lab, argv...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return got, nil, err
	}
	if err := cmd.Start(); err != nil {
		return got, nil, err
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may just have ended
		_ = cmd.Wait()
	})
	if err := json.NewDecoder(out).Decode(&got); err != nil {
		end()
		if errors.Is(err, io.EOF) { // no session with a waypoint that has other faults
			return got, end, nil
		}
		return got, end, fmt.Errorf("read what mallory got: %w", err)
	}
	return got, end, nil
}

// Bounds of what one member may have of a waypoint (docs/security.md): for
// connections, with room for others' joins and for times that are not exact.
const (
	mostTunnels     = 8
	scanBurst       = 400
	scanConnections = 150 // a second
)

// scan opens connections to the server through a waypoint, as fast as it can,
// and tries what the policy denies.
func (s *striker) scan(ctx context.Context, k *Strike, at netip.Addr, d time.Duration) error {
	to := s.w.host(server).Addr4()
	allowed := netip.AddrPortFrom(to, s.w.plan.Streams[0].Port).String()
	router, _ := s.w.host(near).AddrOn(inLink(k.Hit))
	denied := []netip.AddrPort{
		netip.AddrPortFrom(to, smtp), netip.AddrPortFrom(s.w.forbidden(), 80), netip.AddrPortFrom(router, 80),
		netip.AddrPortFrom(at, 22), netip.MustParseAddrPort("127.0.0.1:22"),
	}
	args := []string{"--hold", "1m", "--map", allowed}
	for _, server := range denied {
		args = append(args, "--map", server.String())
	}
	got, end, err := s.member(ctx, k.Hit, args...)
	if err != nil {
		return err
	}
	defer end()
	var ports []netip.AddrPort
	for server, port := range got.Ports {
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
	sent, err := attack.Scan(ctx, s.raw, s.w.host(mallory).Addr4(), ports)
	k.Note = fmt.Sprintf("%d SYNs sent", sent)
	return err
}

// askTunnels asks for as many tunnels as there are.
func (s *striker) askTunnels(ctx context.Context, k *Strike, _ netip.Addr, d time.Duration) error {
	got, end, err := s.member(ctx, k.Hit, "--tunnels", d.String())
	if err != nil {
		return err
	}
	end()
	k.Note = fmt.Sprintf("%d tunnels granted", got.Tunnels)
	if got.Tunnels == 0 {
		k.miss("mallory got no tunnel")
	}
	if got.Tunnels > mostTunnels {
		s.excess.add("%s granted a member %d tunnels", k.Hit, got.Tunnels)
	}
	return nil
}

// flood sends noise to the sessions' port, and SYNs to all ports.
func (s *striker) flood(ctx context.Context, at netip.Addr, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	conn, err := udpSocket(s.w.host(mallory))
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
			_, _ = conn.WriteToUDPAddrPort(noise[:1+rand.IntN(len(noise))], netip.AddrPortFrom(at, 45672)) // lost like any other
			from := netip.AddrPortFrom(s.w.host(mallory).Addr4(), uint16(1024+rand.IntN(60000)))
			to := netip.AddrPortFrom(at, uint16(1+rand.IntN(65535)))
			if err := s.raw.Send(attack.Segment{From: from, To: to, Seq: rand.Uint32(), Flags: attack.SYN, Window: 1024}); err != nil {
				return err
			}
		}
		pause(ctx, 20*time.Millisecond)
	}
	return nil
}

func udpSocket(h *testbed.Host) (conn *net.UDPConn, err error) {
	err = h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", nil)
		return err
	})
	return conn, err
}
