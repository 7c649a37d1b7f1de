package waypoint

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

// segment is a TCP segment without data that a stranger makes up.
type segment struct {
	flags    packet.Flags
	seq, ack uint32
	options  []byte // of IP
}

// packet is the segment as an IPv4 packet.
func (s segment) packet(from, to netip.AddrPort) []byte {
	p := packet.Segment(from, to, packet.TCP{Seq: s.seq, Ack: s.ack, Flags: s.flags, Window: 0xff00}, nil)
	p.V4.Options = s.options
	return sealed(p)
}

// forge sends segments from a host with another's address, or with its own but without a socket.
func forge(t testing.TB, ns *netnstest.NS, from, to netip.AddrPort, segments ...segment) {
	t.Helper()
	ns.Must(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, s := range segments {
			if err := unix.Sendto(fd, s.packet(from, to), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// A stranger who knows a detour's addresses and ports, but does not see its packets, cannot end it: not on the
// fast path, not while it is watched, and not where a limit keeps it in netfilter.
func TestStrangersEndNoDetour(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		fast   bool
	}{
		"on the fast path":    {func(*Config) {}, true},
		"watched":             {func(*Config) {}, false},
		"with a limit":        {func(c *Config) { c.BandwidthPerMember = 1 << 30 }, false},
		"without a fast path": {func(c *Config) { c.FastPath = false }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			c.change(&n.config)
			server := n.echo(t, "10.2.0.1:443")
			w, _ := n.start(t)
			mustMap(t, w, peer("alice", client4), server, 443)
			through := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
			if c.fast {
				waitFast(t, w, 1, through)
			}
			before := n.tracked(t)
			if len(before) != 1 {
				t.Fatalf("conntrack has %+v", before)
			}
			flow := before[0]
			waitWatched(t, w, flow.Origin)
			var spared []uint32
			if !c.fast {
				spared = through.numbers(t)
			}
			const number = 0x12345678
			noOperation := []byte{1, 1, 1, 1}
			for attack, segments := range map[string][]segment{
				"RST":                       {{flags: packet.RST, seq: number}},
				"many RSTs":                 resets(1000, spared...),
				"RST with IP options":       {{flags: packet.RST, seq: number, options: noOperation}},
				"FIN":                       {{flags: packet.FIN | packet.ACK, seq: number, ack: number}},
				"FIN, then RST":             {{flags: packet.FIN | packet.ACK, seq: number, ack: number}, {flags: packet.RST, seq: number + 1}},
				"SYN":                       {{flags: packet.SYN, seq: number}},
				"SYN, then RST":             {{flags: packet.SYN, seq: number}, {flags: packet.RST | packet.ACK, seq: number + 1, ack: number + 1}},
				"two SYNs, then RST":        {{flags: packet.SYN, seq: number}, {flags: packet.SYN, seq: number}, {flags: packet.RST, seq: number + 1, ack: number + 1}},
				"data that fits a RST":      {{flags: packet.ACK, seq: number, ack: number}, {flags: packet.RST, seq: number}},
				"SYN-ACK, then RST":         {{flags: packet.SYN | packet.ACK, seq: number, ack: number}, {flags: packet.RST, seq: number + 1}},
				"RST of an answer to a SYN": {{flags: packet.RST | packet.ACK, ack: number}},
			} {
				forge(t, n.client, flow.Origin.Src, flow.Origin.Dst, segments...)
				forge(t, n.server, flow.Reply.Src, flow.Reply.Dst, segments...)
				time.Sleep(20 * time.Millisecond) // for the packets to come through
				if after := n.tracked(t); len(after) != 1 || !after[0].Established || !sameFlow(after[0], flow) {
					t.Fatalf("%s: conntrack has %+v", attack, after)
				}
				if err := through.talk(1000); err != nil {
					t.Fatalf("%s: %v", attack, err)
				}
			}
			// From both sides at the same time, as if each had answered the other.
			forge(t, n.client, flow.Origin.Src, flow.Origin.Dst, segment{flags: packet.SYN, seq: number})
			forge(t, n.server, flow.Reply.Src, flow.Reply.Dst, segment{flags: packet.RST | packet.ACK, ack: number + 1})
			if err := through.talk(1000); err != nil {
				t.Fatal(err)
			}
			if after := n.tracked(t); len(after) != 1 || !after[0].Established {
				t.Errorf("conntrack has %+v", after)
			}
			if c.fast {
				waitFast(t, w, 1)
			}
		})
	}
}

func sameFlow(a, b netstate.Flow) bool { return a.Origin == b.Origin && a.Reply == b.Reply }

// waitWatched waits until the eBPF program watches a connection: before, a SYN and a RST end it (docs/security.md).
func waitWatched(t testing.TB, w *Waypoint, origin netstate.Tuple) {
	t.Helper()
	eventually(t, "the connection is watched", func() (watched bool) {
		if err := w.ask(func() { watched = w.loop.connections.flows.Fast(origin) != nil }); err != nil {
			t.Fatal(err)
		}
		return watched
	})
}

// resets are n RSTs all over the space of sequence numbers, except within 16 MiB of the spared ones. conntrack takes
// a RST within the receiver's window for genuine, and then drops data that it would not have dropped before.
func resets(n int, spared ...uint32) (list []segment) {
	const step, window = 1<<32/1000 + 1, 1 << 24
	for i := range n {
		seq := uint32(i) * step
		if !slices.ContainsFunc(spared, func(s uint32) bool { return seq-s+window <= 2*window }) {
			list = append(list, segment{flags: packet.RST, seq: seq})
		}
	}
	return list
}

// numbers returns the sequence numbers that the connection sends and receives next.
func (c *conn) numbers(t testing.TB) []uint32 {
	t.Helper()
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const receiveQueue, sendQueue, offWithoutProbe = 1, 2, -1 // TCP_RECV_QUEUE, TCP_SEND_QUEUE, TCP_REPAIR_OFF_NO_WP
	var list []uint32
	err = errors.Join(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
		for _, queue := range []int{sendQueue, receiveQueue} {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue))
			number, readErr := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
			list, err = append(list, uint32(number)), errors.Join(err, readErr)
		}
		err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, offWithoutProbe))
	}), err)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
