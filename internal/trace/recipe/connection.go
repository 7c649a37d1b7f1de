package recipe

import (
	"context"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// connection is a TCP connection that a recipe has begun by itself.
type connection struct {
	s      *Session
	port   uint16 // of the server
	source uint16
	seq    uint32 // of the next byte
	ack    uint32
	first  *packet.TCP // the SYN+ACK
}

// connect begins a connection. The server's SYN+ACK is acknowledged with options of the caller's.
func (s *Session) connect(ctx context.Context, port uint16, options []packet.Option, then func(*packet.TCP) []packet.Option) (*connection, error) {
	c := &connection{s: s, port: port, source: s.freshPort(), seq: s.Random.Uint32()}
	if err := s.Hold(c.source, port); err != nil {
		return nil, err
	}
	answer, err := c.exchange(ctx, packet.TCP{Seq: c.seq, Flags: packet.SYN, Options: options}, nil, func(p *packet.Packet) bool {
		return p.TCP.Flags.Has(packet.RST) || p.TCP.Flags.Has(synack) && p.TCP.Ack == c.seq+1
	})
	if err != nil {
		return nil, err
	}
	if answer == nil || answer.TCP.Flags.Has(packet.RST) {
		return nil, errNoConnection
	}
	c.first = answer.TCP
	c.seq, c.ack = c.seq+1, answer.TCP.Seq+1
	var more []packet.Option
	if then != nil {
		more = then(answer.TCP)
	}
	if err := c.send(packet.TCP{Flags: packet.ACK, Options: more}, nil); err != nil {
		return nil, err
	}
	return c, nil
}

// send sends a segment. Seq and Ack are the connection's where they are 0.
func (c *connection) send(h packet.TCP, data []byte) error {
	p, err := c.packet(h, data)
	if err != nil {
		return err
	}
	return c.s.Net.Send(p.Bytes())
}

func (c *connection) packet(h packet.TCP, data []byte) (*packet.Packet, error) {
	h.SrcPort = c.source
	if h.Seq == 0 {
		h.Seq = c.seq
	}
	if h.Ack == 0 && h.Flags.Has(packet.ACK) {
		h.Ack = c.ack
	}
	return c.s.segment(c.port, h, data)
}

// exchange sends a segment, up to three times, and waits for one that the caller accepts. It returns nil if none came.
func (c *connection) exchange(ctx context.Context, h packet.TCP, data []byte, accept func(*packet.Packet) bool) (*packet.Packet, error) {
	const tries = 3
	for range tries {
		if err := c.send(h, data); err != nil {
			return nil, err
		}
		if p, err := c.await(ctx, accept); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// await waits for a segment of the connection that the caller accepts.
func (c *connection) await(ctx context.Context, accept func(*packet.Packet) bool) (*packet.Packet, error) {
	timer := time.NewTimer(c.s.wait() / 2)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			return nil, nil
		case a, ok := <-c.s.Net.Arrivals():
			if !ok {
				return nil, trace.ErrClosed
			}
			p, err := packet.Parse(a.Bytes)
			if err != nil || p.TCP == nil || p.Src() != c.s.Destination || p.TCP.SrcPort != c.port || p.TCP.DstPort != c.source {
				continue
			}
			if accept(p) {
				return p, nil
			}
		}
	}
}

// trace sends data that ends at each of some hops, and not further.
func (c *connection) trace(ctx context.Context, hops []int, h packet.TCP, data []byte) (*trace.Path, error) {
	h.Flags |= packet.ACK
	p, err := c.packet(h, data)
	if err != nil {
		return nil, err
	}
	return trace.Run(ctx, c.s.Net, p, trace.Options{Only: hops, Keep: true})
}

// close resets the connection, so that the server forgets it.
func (c *connection) close() { _ = c.send(packet.TCP{Flags: packet.RST | packet.ACK}, nil) }

// before returns the hops of a path that quote whole packets and are not the destination.
func before(p *trace.Path) (hops []int) {
	for _, d := range p.FullQuotes() {
		if p.Distance == 0 || d < p.Distance {
			hops = append(hops, d)
		}
	}
	return hops
}
