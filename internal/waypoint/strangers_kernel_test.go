package waypoint

import (
	"net/netip"
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
			const number = 0x12345678
			noOperation := []byte{1, 1, 1, 1}
			for attack, segments := range map[string][]segment{
				"RST":                       {{flags: packet.RST, seq: number}},
				"many RSTs":                 resets(1000),
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

// resets are RSTs all over the space of sequence numbers.
func resets(n int) (list []segment) {
	for i := range n {
		list = append(list, segment{flags: packet.RST, seq: uint32(i) * (1<<32/1000 + 1)})
	}
	return list
}
