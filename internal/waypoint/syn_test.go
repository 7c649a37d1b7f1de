package waypoint

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// synPacket is a SYN made by hand.
type synPacket struct {
	src, dst     netip.AddrPort
	seq          uint32
	tsval, tsecr uint32
	flags        packet.Flags
	options      []byte // beside the timestamps
}

// naming is the option that names a server.
func naming(server netip.Addr) []byte {
	return packet.Experiment(0xdc01, server.AsSlice()).Append(nil)
}

// bytes are the packet with its IPv4 header.
func (p synPacket) bytes() []byte {
	var options []byte
	options = packet.Timestamps(p.tsval, p.tsecr).Append(options)
	return sealed(packet.Segment(p.src, p.dst, packet.TCP{Seq: p.seq, Flags: p.flags, Window: 0xffff, Rest: append(options, p.options...)}, nil))
}

func sealed(p *packet.Packet) []byte {
	if err := p.Seal(); err != nil {
		panic(err)
	}
	return p.Bytes()
}

// tap sees the TCP packets that reach one namespace, and sends any. A packet is there for it to see
// before the namespace answers it.
type tap struct {
	fd   int
	seen []seenPacket
}

type seenPacket struct {
	src, dst netip.AddrPort
	seq, ack uint32
	flags    packet.Flags
	options  []byte
}

// newTap listens until the test ends.
func newTap(t *testing.T, in *netnstest.NS) *tap {
	t.Helper()
	p := &tap{}
	in.Must(t, func() (err error) {
		p.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
		return errors.Join(err, unix.SetsockoptInt(p.fd, unix.IPPROTO_IP, unix.IP_HDRINCL, 1))
	})
	t.Cleanup(func() { _ = unix.Close(p.fd) })
	return p
}

func (p *tap) note(b []byte) {
	got, err := packet.Parse(b)
	if err != nil || got.TCP == nil {
		return
	}
	p.seen = append(p.seen, seenPacket{
		src: got.From(), dst: got.To(), seq: got.TCP.Seq, ack: got.TCP.Ack, flags: got.TCP.Flags, options: got.TCP.OptionBytes(),
	})
}

func (p *tap) all(which func(seenPacket) bool) []seenPacket {
	b := make([]byte, 1<<16)
	for {
		n, err := unix.Read(p.fd, b)
		if err != nil {
			break // no more for now
		}
		p.note(b[:n])
	}
	var found []seenPacket
	for _, s := range p.seen {
		if which(s) {
			found = append(found, s)
		}
	}
	return found
}

func (p *tap) send(t *testing.T, packet synPacket) {
	t.Helper()
	if err := unix.Sendto(p.fd, packet.bytes(), 0, &unix.SockaddrInet4{Addr: packet.dst.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
}

// prober sends SYNs from the client's network and reports what answers.
type prober struct {
	*network
	client, server *tap
	next           uint16
}

func newProber(t *testing.T, n *network) *prober {
	return &prober{network: n, client: newTap(t, n.client), server: newTap(t, n.server), next: 40000}
}

// syn makes a SYN that names a server, to its port at the waypoint, as the key's holder would.
func (p *prober) syn(server netip.AddrPort, grant wire.TunnelGrant) synPacket {
	p.next++
	s := synPacket{src: netip.AddrPortFrom(client4, p.next), dst: netip.AddrPortFrom(waypoint4, server.Port()),
		seq: uint32(p.next) << 8, tsval: 1000, flags: packet.SYN, options: naming(server.Addr())}
	return s.signed(server.Addr(), grant)
}

// signed puts the authenticator of a grant into a SYN that names a server.
func (p synPacket) signed(server netip.Addr, grant wire.TunnelGrant) synPacket {
	if len(grant.Key) > 0 {
		p.tsecr = inband.Authenticator(inband.Join{Local: p.src, Remote: p.dst, Server: server,
			Auth: &inband.Auth{Key: inband.Key(grant.Key), Client: grant.Client, ClientPort: grant.ClientPort}}, p.seq, p.tsval)
	}
	return p
}

// Who answers a SYN.
const (
	byServer   = "the server"
	byWaypoint = "a service of the waypoint"
	byNobody   = "a reset by the waypoint"
)

// probe sends a SYN and returns who answers it. It fails the test if there is no answer.
func (p *prober) probe(t *testing.T, s synPacket) string {
	t.Helper()
	before := len(p.arrived(s))
	answered := len(p.answers(s))
	p.client.send(t, s)
	var answers []seenPacket
	eventually(t, "an answer", func() bool {
		answers = p.answers(s)
		return len(answers) > answered
	})
	last := answers[len(answers)-1]
	switch {
	case len(p.arrived(s)) > before:
		return byServer
	case last.flags&packet.RST != 0:
		return byNobody
	}
	return byWaypoint
}

func (p *prober) answers(s synPacket) []seenPacket {
	return p.client.all(func(x seenPacket) bool { return x.src == s.dst && x.dst == s.src && x.ack == s.seq+1 })
}

// arrived are the SYNs that the server got of one.
func (p *prober) arrived(s synPacket) []seenPacket {
	return p.server.all(func(x seenPacket) bool {
		return x.seq == s.seq && x.flags == packet.SYN && x.dst.Port() == s.dst.Port()
	})
}

// granted admits alice at the client's address, over a session with this id.
func (p *prober) granted(t *testing.T, w *Waypoint, id uint64) wire.TunnelGrant {
	t.Helper()
	return mustInBand(t, w, overSession("alice", client4, id))
}

func overSession(name string, addr netip.Addr, id uint64) session.Peer {
	return session.Peer{ID: id, Name: name, Serial: "5e", Addr: addr}
}

// mustInBand asks as the session's member would, without a NAT between; SessionUp is the caller's.
func mustInBand(t testing.TB, w *Waypoint, p session.Peer) wire.TunnelGrant {
	t.Helper()
	grant, refusal := w.InBand(t.Context(), p, wire.TunnelRequest{ID: 9, Kind: wire.InBand, Local: p.Addr})
	if refusal != nil {
		t.Fatalf("in-band for %v: %v", p, refusal)
	}
	if grant.ID != 9 || grant.Kind != wire.InBand || grant.Client != p.Addr || grant.Lease != w.loop.config.MappingLifetime {
		t.Fatalf("grant %+v", grant)
	}
	if authenticated := w.loop.config.InBand == InBandAuthenticated; (len(grant.Key) == 16) != authenticated || grant.ClientPort != authenticated {
		t.Fatalf("grant %+v", grant)
	}
	return grant
}

// inBandRefusal asks and wants to be refused.
func inBandRefusal(t testing.TB, w *Waypoint, p session.Peer) *wire.Refusal {
	t.Helper()
	grant, refusal := w.InBand(t.Context(), p, wire.TunnelRequest{ID: 9, Kind: wire.InBand, Local: p.Addr})
	if refusal == nil {
		t.Fatalf("in-band for %v: granted %+v", p, grant)
	}
	if refusal.ID != 9 {
		t.Errorf("refusal %+v", refusal)
	}
	return refusal
}
