package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/crew"
)

// packetLinks lists the links on which the sender's system call carries each packet to the server, so that the sender's
// processor time includes all of the work.
var packetLinks = map[string]string{
	"no forwarder": direct, "plain forwarding": toClient(plainHost), "conntrack and masquerade": toClient(natHost),
	string(config.InBand): toClient(memberHost), string(config.Mapped): toClient(memberHost),
}

// packetPlan sets the amount of work.
type packetPlan struct{ repetitions, each int }

// measurePackets captures a full data packet of a connection on its link, and sends it again and again. The hosts between
// client and server see a retransmission. The server drops it.
func (s *network) measurePackets(ctx context.Context, all []route, port uint16, plan packetPlan) (found []Measurement, err error) {
	var ways []packetRoute
	defer func() {
		for _, w := range ways {
			w.conn.Close()
			_ = unix.Close(w.fd)
		}
	}()
	for _, c := range all {
		link, is := packetLinks[c.name]
		if !is {
			continue
		}
		port++
		w, err := s.openPacketRoute(ctx, c, link, port)
		if err != nil {
			return nil, fmt.Errorf("a packet of %s: %w", c.name, err)
		}
		ways = append(ways, w)
	}
	if err := s.awaitFast(ctx, ways); err != nil {
		return nil, err
	}
	if err := s.Host(serverHost).Nft(ctx, `table ip deaf {
	chain prerouting {
		type filter hook prerouting priority raw
		meta l4proto tcp drop
	}
}`); err != nil {
		return nil, err
	}
	costs := make([][]float64, len(ways))
	err = inTurns(plan.repetitions, len(ways), func(_, i int) error {
		v, err := sendFrames(ways[i].fd, slices.Repeat([][]byte{ways[i].frame}, plan.each))
		if err != nil {
			return fmt.Errorf("send a packet of %s again: %w", ways[i].name, err)
		}
		costs[i] = append(costs[i], v.each(v.cpu)*1e3)
		return context.Cause(ctx)
	})
	if err != nil {
		return nil, err
	}
	return packetFigures(ways, costs, plan), s.Host(serverHost).Nft(ctx, "delete table ip deaf")
}

// awaitFast waits until the waypoint's fast path handles both detours, if it has a fast path. It begins to handle a
// detour when data passes.
func (s *network) awaitFast(ctx context.Context, ways []packetRoute) error {
	const detours = 2
	return crew.Await(ctx, startLimit, 50*time.Millisecond, func() error {
		for _, w := range ways {
			if _, err := w.conn.Write([]byte{0}); err != nil {
				return fmt.Errorf("send over %s: %w", w.name, err)
			}
		}
		status, err := s.Status(ctx, memberHost)
		if err != nil || status.Serving == nil || status.Serving.FastFlows == nil || *status.Serving.FastFlows >= detours {
			return err
		}
		return fmt.Errorf("the waypoint has %d connections of %d on its fast path", *status.Serving.FastFlows, detours)
	})
}

// packetRoute is a connection and one of its packets.
type packetRoute struct {
	name  string
	conn  net.Conn
	fd    int // frames go out here
	frame []byte
}

func (s *network) openPacketRoute(ctx context.Context, c route, link string, port uint16) (w packetRoute, err error) {
	w.name = c.name
	if w.fd, err = s.openPacketSocket(link); err != nil {
		return w, err
	}
	conn, err := c.dial(ctx, s, port)
	if err != nil {
		return w, errors.Join(err, unix.Close(w.fd))
	}
	w.conn = conn
	if w.frame, err = firstData(w.fd, conn, port); err != nil {
		return w, errors.Join(err, conn.Close(), unix.Close(w.fd))
	}
	return w, nil
}

// firstData makes a connection send a full packet, its first data, and captures that packet.
func firstData(fd int, conn net.Conn, port uint16) ([]byte, error) {
	const mss = 1448 // of 1500 bytes, with TCP's timestamps
	if _, err := conn.Write(make([]byte, mss)); err != nil {
		return nil, err
	}
	patience := unix.NsecToTimeval(time.Second.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return nil, err
	}
	buffer := make([]byte, 2048)
	for {
		n, err := unix.Read(fd, buffer)
		if err != nil {
			return nil, fmt.Errorf("catch it: %w", err)
		}
		const ethernet = 14
		p, err := packet.Parse(buffer[min(n, ethernet):n])
		if err == nil && p.TCP != nil && p.TCP.SrcPort == port && len(p.Payload) == mss {
			// The card would have filled in the checksum.
			if err := p.Seal(); err != nil {
				return nil, err
			}
			return p.Append(bytes.Clone(buffer[:ethernet])), nil
		}
	}
}

// packetFigures returns the time that the forwarder takes for a packet, without the time to send and to drop it.
func packetFigures(ways []packetRoute, costs [][]float64, plan packetPlan) (found []Measurement) {
	own := map[string]Measurement{}
	for i, w := range ways[1:] {
		var each []float64
		for r, ns := range costs[i+1] {
			each = append(each, ns-costs[0][r])
		}
		own[w.name] = of("forwarding: a full packet through the forwarder, "+w.name, "ns", each)
	}
	plain, nat := own["plain forwarding"], own["conntrack and masquerade"]
	plain.Note = fmt.Sprintf("the forwarder's own processor time: what the sender of the packet spends, less what it spends where there is no forwarder; %d at a time, whatever their size", plan.each)
	found = append(found, plain, nat.against(plain.Value))
	for _, kind := range []config.Kind{config.InBand, config.Mapped} {
		m := own[string(kind)]
		beside := m.against(nat.Value)
		beside.Name += ", beside conntrack and masquerade"
		m = m.against(plain.Value)
		if kind == config.InBand {
			m = m.target("ratio <= 1.1", *m.Ratio <= 1.1)
			m.Note = "a detour is a tracked and translated connection: the kernel's own price for that is the ratio of conntrack and masquerade"
		}
		found = append(found, m, beside)
	}
	return found
}
