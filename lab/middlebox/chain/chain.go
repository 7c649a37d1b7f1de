// Package chain is a path in memory: routers, middleboxes and a server behind them, without a kernel. Tests and
// benchmarks trace it in virtual time.
package chain

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// Hop is a router, which may be a middlebox, too. Packets pass the router first: it quotes them unchanged.
type Hop struct {
	Quotes middlebox.Quotes // QuoteKernel is QuoteAll
	ICMP   middlebox.ICMP
	Box    middlebox.Kind
}

// Server answers packets that reach the end of the path. now is a time since any epoch.
type Server func(p *packet.Packet, now time.Duration) []*packet.Packet

// Chain is a path. It is a trace.Network at its near end.
type Chain struct {
	hops     []*hop
	delay    time.Duration // each way, of each link
	server   Server
	arrivals chan trace.Arrival
	start    time.Time

	mu     sync.Mutex // guards the hops' and the server's state
	closed bool
	events []event // sorted by time, then by the order in which they were added
	timers sync.WaitGroup
	// Tamper changes an arriving packet, if it is set: it returns the packets to deliver.
	Tamper func(b []byte) [][]byte
}

// event is an action due at a time.
type event struct {
	at time.Time
	do func()
}

type hop struct {
	router  *middlebox.Router
	box     *middlebox.Box
	address [2]netip.Addr
}

// New makes a path of hops, whose links each take a delay.
func New(hops []Hop, delay time.Duration, server Server) *Chain {
	c := &Chain{delay: delay, server: server, arrivals: make(chan trace.Arrival, 4096), start: time.Now()}
	for i, h := range hops {
		own := Address(i + 1)
		if h.Quotes == middlebox.QuoteKernel {
			h.Quotes = middlebox.QuoteAll
		}
		c.hops = append(c.hops, &hop{
			router: middlebox.NewRouter(h.Quotes, h.ICMP, own[:]), address: own,
			box: middlebox.New(h.Box, own[:], uint64(i)),
		})
	}
	return c
}

// Address returns the addresses of the router at a distance.
func Address(distance int) [2]netip.Addr {
	return [2]netip.Addr{
		netip.AddrFrom4([4]byte{192, 0, 2, byte(distance)}),
		netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: byte(distance)}),
	}
}

// Send sends a packet into the path.
func (c *Chain) Send(b []byte) error {
	b = slices.Clone(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after(c.delay, func() { c.forward(0, b) })
	return nil
}

// Arrivals delivers the packets that come back.
func (c *Chain) Arrivals() <-chan trace.Arrival { return c.arrivals }

// Close waits until nothing is on its way.
func (c *Chain) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.timers.Wait()
}

// after adds an event. Packets with equal delays stay in order. c.mu must be held.
func (c *Chain) after(d time.Duration, do func()) {
	at := time.Now().Add(d)
	i, _ := slices.BinarySearchFunc(c.events, at, func(e event, at time.Time) int {
		if e.at.After(at) {
			return 1
		}
		return -1
	})
	c.events = slices.Insert(c.events, i, event{at, do})
	c.timers.Add(1)
	time.AfterFunc(d, func() {
		defer c.timers.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		for now := time.Now(); len(c.events) > 0 && !c.events[0].at.After(now); {
			first := c.events[0]
			c.events = c.events[1:]
			if !c.closed {
				first.do()
			}
		}
	})
}

// forward handles a packet that arrives at a hop on the way to the server.
func (c *Chain) forward(i int, b []byte) {
	if i == len(c.hops) {
		p, err := packet.Parse(b)
		if err != nil || c.server == nil {
			return
		}
		for _, a := range c.server(p, time.Since(c.start)) {
			if a.Seal() == nil {
				c.after(c.delay, func() { c.backward(i-1, a.Bytes()) })
			}
		}
		return
	}
	h := c.hops[i]
	reply, expired := h.router.Expire(b, h.address, time.Since(c.start))
	if expired {
		if reply != nil {
			c.after(c.delay, func() { c.backward(i-1, reply) })
		}
		return
	}
	lower(b)
	on, back := h.box.Pass(b)
	for _, p := range on {
		c.after(c.delay, func() { c.forward(i+1, p) })
	}
	for _, p := range back {
		c.after(c.delay, func() { c.backward(i-1, p) })
	}
}

// backward handles a packet that arrives at a hop on the way back.
func (c *Chain) backward(i int, b []byte) {
	if i < 0 {
		arrived := [][]byte{b}
		if c.Tamper != nil {
			arrived = c.Tamper(b)
		}
		for _, b := range arrived {
			select {
			case c.arrivals <- trace.Arrival{At: time.Now(), Bytes: b}:
			default: // as a socket whose buffer is full
			}
		}
		return
	}
	on, _ := c.hops[i].box.Pass(b)
	for _, p := range on {
		c.after(c.delay, func() { c.backward(i-1, p) })
	}
}

// lower takes one off the time to live.
func lower(b []byte) {
	p, err := packet.Parse(b)
	if err != nil {
		return
	}
	if p.V4 != nil {
		p.V4.TTL--
		p.V4.SetChecksum()
	} else {
		p.V6.HopLimit--
	}
	copy(b, p.Bytes())
}

// Linux answers SYNs as Linux does: a repetition only after half a second. It acknowledges data. A reset forgets the
// connection. The options are those of its SYN+ACKs.
func Linux(options ...packet.Option) Server {
	half := map[netip.AddrPort]time.Duration{}
	const again = 500 * time.Millisecond
	return func(p *packet.Packet, now time.Duration) []*packet.Packet {
		if p.TCP == nil {
			return nil
		}
		from, h := p.From(), packet.TCP{Seq: 7_000_000, Ack: p.TCP.Seq + uint32(len(p.Payload)), Flags: packet.ACK, Window: 65535}
		switch {
		case p.TCP.Flags.Has(packet.RST):
			delete(half, from)
			return nil
		case p.TCP.Flags.Has(packet.SYN):
			if last, known := half[from]; known && now-last < again {
				return nil
			}
			half[from] = now
			h.Ack++
			h.Flags |= packet.SYN
			h.Options = options
		case len(p.Payload) > 0:
			h.Seq++
		default:
			return nil
		}
		return []*packet.Packet{packet.Segment(p.To(), p.From(), h, nil)}
	}
}
