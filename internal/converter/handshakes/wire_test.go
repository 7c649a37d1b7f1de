package handshakes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
	"github.com/detour-collective/dcol/internal/packet"
)

// wire is a host whose only link ends in the test, which answers in the name of all servers, with any packets.
type wire struct {
	watched
	tun *os.File
}

// Addresses of the host, and of servers at the other end of its link.
var (
	wireHost    = []netip.Addr{netip.MustParseAddr("10.3.0.1"), netip.MustParseAddr("fd03::1")}
	wireServers = []netip.Addr{netip.MustParseAddr("10.3.0.2"), netip.MustParseAddr("fd03::2")}
)

// newWire returns a host without the table.
func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{watched: watched{T: t, host: netnstest.New(t)}}
	w.tun = netnstest.End{NS: w.host, Name: "wire0", Addresses: []string{wireHost[0].String() + "/24", wireHost[1].String() + "/64"}}.TUN(t)
	w.host.Output(t, "ip", "link", "set", "wire0", "txqueuelen", "10000") // packets that nobody reads yet
	return w
}

// watchedWire returns a host with the table.
func watchedWire(t *testing.T) *wire {
	t.Helper()
	w := newWire(t)
	w.open(Exclude{})
	return w
}

// call begins a connection by MPTCP.
func (w *wire) call(to netip.AddrPort) (fd int) {
	w.Helper()
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	w.host.Must(w.T, func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP); err != nil {
			return err
		}
		if err = unix.Connect(fd, at); errors.Is(err, unix.EINPROGRESS) {
			return nil
		}
		return fmt.Errorf("connect: %w", err)
	})
	w.Cleanup(func() { unix.Close(fd) })
	return fd
}

// ended waits until the kernel has taken the answer to a connection's SYN, and returns the errno.
func (w *wire) ended(fd int) (errno unix.Errno) {
	w.Helper()
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if n, _ := unix.Poll(poll, 100); n > 0 {
			got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err != nil {
				w.Fatal(err)
			}
			return unix.Errno(got)
		}
	}
	w.Fatal("the kernel does not take the answer")
	return 0
}

// throw sends a SYN from a port, without a socket that waits for the answer.
func (w *wire) throw(port uint16, to netip.AddrPort, options ...packet.Option) (syn *packet.Packet) {
	w.Helper()
	w.host.Must(w.T, func() error {
		fd, err := thrower(to.Addr())
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		syn, err = thrown(fd, port, to, options...)
		return err
	})
	return syn
}

// thrower returns a socket that sends whole packets.
func thrower(to netip.Addr) (fd int, err error) {
	family := unix.AF_INET6
	if to.Is4() {
		family = unix.AF_INET
	}
	return unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
}

func thrown(fd int, port uint16, to netip.AddrPort, options ...packet.Option) (syn *packet.Packet, err error) {
	from, at := wireHost[1], unix.Sockaddr(&unix.SockaddrInet6{Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		from, at = wireHost[0], &unix.SockaddrInet4{Addr: to.Addr().As4()}
	}
	syn = packet.Segment(netip.AddrPortFrom(from, port), to, packet.TCP{Seq: 1, Flags: packet.SYN, Window: 0xffff, Options: options}, nil)
	if err := syn.Seal(); err != nil {
		return nil, err
	}
	return syn, unix.Sendto(fd, syn.Bytes(), 0, at)
}

// next returns the host's next packet to a server that has these of the flags SYN, ACK and RST.
func (w *wire) next(to netip.AddrPort, flags packet.Flags) *packet.Packet {
	w.Helper()
	if err := w.tun.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		w.Fatal(err)
	}
	for {
		b := make([]byte, 2000)
		n, err := w.tun.Read(b)
		if err != nil {
			w.Fatalf("no packet with %#x to %v: %v", flags, to, err)
		}
		p, err := packet.Parse(b[:n])
		if err == nil && p.TCP != nil && p.To() == to && p.TCP.Flags&(packet.SYN|packet.ACK|packet.RST) == flags {
			return p
		}
	}
}

// answer returns the answer to a SYN.
func (w *wire) answer(syn *packet.Packet, h packet.TCP) *packet.Packet {
	w.Helper()
	h.Seq, h.Ack, h.Window = 7, syn.TCP.Seq+1, 0xffff
	p := packet.Segment(syn.To(), syn.From(), h, nil)
	if err := p.Seal(); err != nil {
		w.Fatal(err)
	}
	return p
}

// send brings the host packets.
func (w *wire) send(packets ...*packet.Packet) {
	w.Helper()
	for _, p := range packets {
		if _, err := w.tun.Write(p.Bytes()); err != nil {
			w.Fatal(err)
		}
	}
}

// refused sends a SYN+ACK in answer to a SYN that was thrown, and waits until the kernel has reset the connection, which
// nobody wants.
func (w *wire) refused(syn *packet.Packet, options ...packet.Option) {
	w.Helper()
	w.send(w.answer(syn, packet.TCP{Flags: synACK, Options: options}))
	w.next(syn.To(), packet.RST)
}

const synACK = packet.SYN | packet.ACK

// accepts is MP_CAPABLE in a SYN+ACK, and offers in a SYN. joins is MP_JOIN in a SYN.
var (
	accepts = packet.Capable{Version: 1, Flags: packet.CapableHMAC, Keys: 1, Sender: 0x0102030405060708}.Option()
	offers  = packet.Capable{Version: 1, Flags: packet.CapableHMAC}.Option()
	joins   = packet.JoinSYN{Token: 1, Nonce: 2}.Option()
)

// cutAt divides a packet into two fragments. The first has some bytes after the IP header.
func cutAt(first int, p *packet.Packet) []*packet.Packet {
	header := 20
	if p.V6 != nil {
		header = 40
	}
	data := p.Bytes()[header:]
	return []*packet.Packet{fragment(p, 0, true, data[:first]), fragment(p, first, false, data[first:])}
}

func fragment(p *packet.Packet, at int, more bool, data []byte) *packet.Packet {
	f := &packet.Packet{Payload: data}
	if p.V4 != nil {
		h := *p.V4
		if h.ID, h.Fragment = 1, uint16(at/8); more {
			h.Fragment |= packet.MoreFragments
		}
		f.V4 = &h
	} else {
		h, field := *p.V6, uint16(at)
		if more {
			field |= 1
		}
		header := append([]byte{packet.ProtocolTCP, 0}, binary.BigEndian.AppendUint16(nil, field)...)
		h.Extensions = []packet.Extension{{Kind: packet.FragmentHeader, Data: append(header, 0, 0, 0, 1)}}
		f.V6 = &h
	}
	if err := f.Seal(); err != nil {
		panic(err)
	}
	return f
}

// with adds an extension header to an IPv6 packet, and an option of the same effect, none, to one of IPv4.
func with(kind uint8, p *packet.Packet) []*packet.Packet {
	if p.V4 != nil {
		p.V4.Options = []byte{1, 1, 1, 1}
	} else {
		p.V6.Extensions = []packet.Extension{{Kind: kind, Data: []byte{packet.ProtocolTCP, 0, 1, 4, 0, 0, 0, 0}}}
	}
	if err := p.Seal(); err != nil {
		panic(err)
	}
	return []*packet.Packet{p}
}

// The table takes a SYN+ACK as the kernel does. If they differ, the table learns nothing.
func TestAnswersAsTheKernelTakesThem(t *testing.T) {
	t.Parallel()
	w := watchedWire(t)
	usual := []packet.Option{packet.MSS(1400), packet.SACKPermitted, packet.WindowScale(7)}
	unknown := packet.Option{Kind: 77, Data: []byte{1, 2, 3, 4}}
	version := func(v uint8) packet.Option {
		return packet.Capable{Version: v, Flags: packet.CapableHMAC, Keys: 1, Sender: 9}.Option()
	}
	whole := func(p *packet.Packet) []*packet.Packet { return []*packet.Packet{p} }
	last := func(o packet.Option) []byte { return o.Append(nil) }
	for i, c := range []struct {
		name   string
		h      packet.TCP
		arrive func(*packet.Packet) []*packet.Packet
		speaks bool    // the connection is MPTCP
		plain  [2]bool // the table takes the server for one without MPTCP, by IPv4 and IPv6
	}{
		{"accepts", packet.TCP{Options: append(slices.Clone(usual), accepts)}, whole, true, [2]bool{}},
		{"does not accept", packet.TCP{Options: usual}, whole, false, [2]bool{true, true}},
		{"no options", packet.TCP{}, whole, false, [2]bool{true, true}},
		{"an unknown option", packet.TCP{Options: []packet.Option{unknown}}, whole, false, [2]bool{true, true}},
		{"accepts after an unknown option", packet.TCP{Options: []packet.Option{unknown, accepts}}, whole, true, [2]bool{}},
		{"version 0", packet.TCP{Options: []packet.Option{version(0)}}, whole, false, [2]bool{true, true}},
		{"version 2", packet.TCP{Options: []packet.Option{version(2)}}, whole, false, [2]bool{true, true}},
		{"a join", packet.TCP{Options: []packet.Option{packet.JoinSYNACK{Nonce: 1}.Option()}}, whole, false, [2]bool{true, true}},
		{"an unknown subtype", packet.TCP{Options: []packet.Option{{Kind: packet.KindMPTCP, Data: []byte{0xf0, 0}}}}, whole, false, [2]bool{true, true}},
		{"accepts in an option that is cut off", packet.TCP{Options: usual, Rest: last(accepts)[:4]}, whole, false, [2]bool{true, true}},
		// nftables reads on where the kernel does not.
		{"accepts behind the end of the options", packet.TCP{Options: []packet.Option{packet.End}, Rest: last(accepts)}, whole, false, [2]bool{}},
		{"accepts behind an option of no length", packet.TCP{Rest: append([]byte{77, 0}, last(accepts)...)}, whole, false, [2]bool{}},
		{"accepts in an option that is too short", packet.TCP{Rest: []byte{packet.KindMPTCP, 3, 1}}, whole, false, [2]bool{}},

		{"accepts, in an unusual IP header", packet.TCP{Options: []packet.Option{accepts}}, func(p *packet.Packet) []*packet.Packet { return with(packet.DestinationOptions, p) }, true, [2]bool{}},
		{"does not accept, in an unusual IP header", packet.TCP{Options: usual}, func(p *packet.Packet) []*packet.Packet { return with(packet.HopByHop, p) }, false, [2]bool{true, true}},
		{"accepts, in fragments", packet.TCP{Options: append(slices.Clone(usual), accepts)}, func(p *packet.Packet) []*packet.Packet { return cutAt(24, p) }, true, [2]bool{}},
		{"does not accept, in fragments", packet.TCP{Options: usual}, func(p *packet.Packet) []*packet.Packet { return cutAt(24, p) }, false, [2]bool{true, false}},
	} {
		for j, addr := range wireServers {
			name := fmt.Sprintf("%s, %v", c.name, addr)
			server := netip.AddrPortFrom(addr, uint16(1000+i))
			fd := w.call(server)
			h := c.h
			h.Flags = synACK
			w.send(c.arrive(w.answer(w.next(server, packet.SYN), h))...)
			if errno := w.ended(fd); errno != 0 {
				t.Errorf("%s: the connection ends with %v", name, errno)
			}
			// Linux 6.1 has no such option.
			if is, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, sockinfo.TCPIsMPTCP); err == nil && (is == 1) != c.speaks {
				t.Errorf("%s: the connection is MPTCP: %t", name, is == 1)
			}
			w.expect(c.plain[j], server, name)
		}
	}
	// A fragment that is the only one is a whole packet.
	server := netip.AddrPortFrom(wireServers[1], 80)
	fd := w.call(server)
	p := w.answer(w.next(server, packet.SYN), packet.TCP{Flags: synACK})
	w.send(fragment(p, 0, false, p.Bytes()[40:]))
	w.ended(fd)
	w.expect(true, server, "the only fragment")
}

// The answer to a SYN that was sent before the table existed shows nothing. Nor do SYNs that were sent while another
// process had it.
func TestSYNBeforeTheTable(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	for i, addr := range wireServers {
		for _, answers := range [][]packet.Option{nil, {accepts}} {
			server := netip.AddrPortFrom(addr, uint16(80+len(answers)))
			before := w.throw(2000, server, offers)
			w.open(Exclude{})
			w.refused(before, answers...)
			w.expect(false, server, "its SYN was sent before")

			before = w.throw(2001, server, offers)
			if err := w.table.Close(); err != nil {
				t.Fatal(err)
			}
			w.open(Exclude{})
			learned := w.throw(2002, server, offers)
			w.refused(learned)
			w.expect(true, server, "it did not accept")
			w.refused(before, answers...)
			w.expect(true, server, "an answer that does not count")
			if list, err := w.table.conn.Elements(table, families[i].offered); err != nil || len(list) > 0 {
				t.Errorf("still watched are %v, %v", list, err)
			}
			if err := w.table.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A SYN that is answered by a reset leaves no trace on later connections with the same ports, whatever they are. Neither
// does a repeated answer, or one to an offer of another version of MPTCP.
func TestAnswersThatShowNothing(t *testing.T) {
	t.Parallel()
	w := watchedWire(t)
	reset := packet.TCP{Flags: packet.RST | packet.ACK}
	for _, addr := range wireServers {
		for i, later := range [][]packet.Option{{packet.MSS(1400)}, {joins}} {
			server := netip.AddrPortFrom(addr, uint16(80+i))
			w.send(w.answer(w.throw(2000, server, offers), reset))
			w.refused(w.throw(2000, server, later...))
			w.expect(false, server, "it was not offered MPTCP")
		}
		server := netip.AddrPortFrom(addr, 90)
		syn := w.throw(2000, server, offers)
		w.refused(syn, accepts)
		w.refused(syn)
		w.expect(false, server, "the second answer to a SYN")

		server = netip.AddrPortFrom(addr, 91)
		old := packet.Capable{Keys: 1, Flags: packet.CapableHMAC, Sender: 9}.Option()
		w.refused(w.throw(2000, server, old))
		w.expect(false, server, "it was offered version 0")
	}
}

// If more handshakes are under way than the table watches, no more is learned, and connections do not notice.
func TestManyHandshakes(t *testing.T) {
	t.Parallel()
	w := watchedWire(t)
	for i, addr := range wireServers {
		server, beside := netip.AddrPortFrom(addr, 80), netip.AddrPortFrom(addr, 81)
		first := w.throw(1000, server, offers)
		w.host.Must(t, func() error {
			fd, err := thrower(addr)
			for port := range uint16(offeredMost + 100) {
				if err == nil {
					_, err = thrown(fd, 1001+port, server, offers)
				}
			}
			return err
		})
		if list, err := w.table.conn.Elements(table, families[i].offered); err != nil || len(list) != offeredMost {
			t.Fatalf("%d handshakes are watched, %v", len(list), err)
		}
		fd := w.call(beside)
		w.send(w.answer(w.next(beside, packet.SYN), packet.TCP{Flags: synACK}))
		if errno := w.ended(fd); errno != 0 {
			t.Errorf("a connection ends with %v", errno)
		}
		w.expect(false, beside, "there is no room")
		w.refused(first)
		w.expect(true, server, "it is among those that are watched")

		if err := w.table.conn.Commit("as if they had expired", func(tx *nft.Tx) { tx.FlushSet(table, families[i].offered) }); err != nil {
			t.Fatal(err)
		}
		w.refused(w.throw(1000, beside, offers))
		w.expect(true, beside, "there is room again")
	}
}

// If the table remembers as many servers as it may, no more are learned. Those that it knows are renewed, and may change.
func TestManyServers(t *testing.T) {
	t.Parallel()
	w := watchedWire(t)
	for i, addr := range wireServers {
		var list []nft.Element
		for n := range uint32(plainMost) {
			b := addr.AsSlice()
			binary.BigEndian.PutUint16(b[len(b)-2:], uint16(n))
			a, _ := netip.AddrFromSlice(b)
			_, key := familyOf(netip.AddrPortFrom(a, 443))
			list = append(list, nft.Element{Key: key, Timeout: time.Minute})
		}
		if err := w.table.conn.Commit("fill the set", func(tx *nft.Tx) { tx.AddElements(table, families[i].plain, list) }); err != nil {
			t.Fatal(err)
		}
		another, there := netip.AddrPortFrom(addr, 80), netip.AddrPortFrom(addr, 443)
		w.refused(w.throw(1000, another, offers))
		w.expect(false, another, "there is no room")
		w.refused(w.throw(1000, there, offers))
		w.expect(true, there, "it was known already")
		w.refused(w.throw(1000, there, offers), accepts)
		w.expect(false, there, "it accepts now")
	}
}
