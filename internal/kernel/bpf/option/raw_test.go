package option

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/tcpopt"
)

// rawPeer speaks TCP with any bytes as options, at the other end of a TUN interface of the server's namespace.
type rawPeer struct {
	tun      *os.File
	server   netip.AddrPort
	port     uint16
	seq, ack uint32
}

var (
	rawAddress  = netip.MustParseAddr("198.51.100.1")
	tunsAddress = netip.MustParseAddr("198.51.100.2")
)

func newRawPeer(t *testing.T, ns *netnstest.NS) (*rawPeer, net.Listener) {
	t.Helper()
	p := &rawPeer{port: 40000, seq: 1000}
	p.tun = netnstest.End{NS: ns, Name: "raw0", Addresses: []string{tunsAddress.String() + "/24"}}.TUN(t)
	l := listen(t, ns, tunsAddress.String(), false)
	p.server = netip.MustParseAddrPort(l.Addr().String())
	return p, l
}

const (
	flagSYN = 2
	flagACK = 16
)

// send sends a segment without data.
func (p *rawPeer) send(t *testing.T, flags byte, options []byte) {
	t.Helper()
	p.sendData(t, flags, options, nil)
}

// sendData sends a segment. Its options are padded with zeros, which end them.
func (p *rawPeer) sendData(t *testing.T, flags byte, options, data []byte) {
	t.Helper()
	padded := append(slices.Clone(options), make([]byte, (4-len(options)%4)%4)...)
	segment := binary.BigEndian.AppendUint16(nil, p.port)
	segment = binary.BigEndian.AppendUint16(segment, p.server.Port())
	segment = binary.BigEndian.AppendUint32(segment, p.seq)
	segment = binary.BigEndian.AppendUint32(segment, p.ack)
	segment = append(segment, byte(20+len(padded))/4<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	segment = slices.Concat(segment, padded, data)
	from, to := rawAddress.As4(), tunsAddress.As4()
	pseudo := slices.Concat(from[:], to[:], []byte{0, unix.IPPROTO_TCP, 0, byte(len(segment))}, segment)
	binary.BigEndian.PutUint16(segment[16:], checksum(pseudo))
	packet := []byte{0x45, 0, 0, byte(20 + len(segment)), 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}
	packet = slices.Concat(packet, from[:], to[:])
	binary.BigEndian.PutUint16(packet[10:], checksum(packet))
	if _, err := p.tun.Write(append(packet, segment...)); err != nil {
		t.Fatal(err)
	}
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// synACK returns the options of the answer to a SYN.
func (p *rawPeer) synACK(t *testing.T) []byte {
	t.Helper()
	if err := p.tun.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2000)
	for {
		n, err := p.tun.Read(buffer)
		if err != nil {
			t.Fatalf("no SYN+ACK: %v", err)
		}
		packet := buffer[:n]
		if n < 40 || packet[0] != 0x45 || packet[9] != unix.IPPROTO_TCP || packet[33]&(flagSYN|flagACK) != flagSYN|flagACK {
			continue // the kernel's own
		}
		p.ack = binary.BigEndian.Uint32(packet[24:]) + 1
		p.seq++
		return packet[40 : 20+int(packet[32]>>4)*4]
	}
}

// announcement is a SYN's.
func announcement(length, version byte, asks, accepts tcpopt.Option) []byte {
	b := []byte{254, length, 0xdc, 0x10, version, byte(asks), byte(accepts), 0, 0, 0, 0, 0}
	return b[:length]
}

const allOptions = tcpopt.UserTimeout | tcpopt.Congestion | tcpopt.InitialWindow | tcpopt.DelayedACK | tcpopt.Rate

var answer = []byte{254, 6, 0xdc, 0x10, 0, byte(allOptions)}

// handshake opens a connection whose third ACK has some options, and reports whether the announcement was answered.
func (p *rawPeer) handshake(t *testing.T, l net.Listener, syn, third []byte) (server net.Conn, answered bool) {
	t.Helper()
	p.send(t, flagSYN, syn)
	answered = bytes.Contains(p.synACK(t), answer)
	p.send(t, flagACK, third)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server, answered
}

func (p *rawPeer) ackWith(t *testing.T, options []byte) { t.Helper(); p.send(t, flagACK, options) }

var (
	goodSYN    = announcement(10, 1, allOptions, 0)
	goodReno   = tcpopt.Append(nil, tcpopt.Request{Option: tcpopt.Congestion, Value: 1})
	goodWindow = tcpopt.Append(nil, tcpopt.Request{Option: tcpopt.InitialWindow, Value: 20})
	goodTime   = tcpopt.Append(nil, tcpopt.Request{Option: tcpopt.UserTimeout, Value: 30})
)

func TestRawPeer(t *testing.T) {
	type report struct {
		option  tcpopt.Option
		verdict tcpopt.Verdict
	}
	fine := report{tcpopt.UserTimeout, tcpopt.Granted}
	for _, c := range []struct {
		name       string
		syn, third []byte
		later      [][]byte // one ACK each; after them comes a good user timeout
		unanswered bool
		want       []report
	}{
		{"good", goodSYN, append(slices.Clone(goodReno), goodWindow...), nil, false,
			[]report{{tcpopt.Congestion, tcpopt.Granted}, {tcpopt.InitialWindow, tcpopt.Granted}, fine}},
		{"later", goodSYN, nil, [][]byte{goodReno}, false, []report{{tcpopt.Congestion, tcpopt.Granted}, fine}},
		{"a window after the handshake", goodSYN, nil, [][]byte{goodWindow}, false, []report{{tcpopt.InitialWindow, tcpopt.Late}, fine}},
		{"a window in the SYN", append(slices.Clone(goodSYN), goodWindow...), nil, nil, false, []report{fine}},
		{"too long", goodSYN, []byte{254, 8, 0xdc, 0x11, 0, 1, 0, 0}, nil, false, []report{{tcpopt.Congestion, tcpopt.Malformed}, fine}},
		{"too short", goodSYN, []byte{254, 5, 0xdc, 0x12, 1, 1}, nil, false, []report{{tcpopt.InitialWindow, tcpopt.Malformed}, fine}},
		{"no value", goodSYN, []byte{254, 4, 0xdc, 0x13}, nil, false, []report{{tcpopt.DelayedACK, tcpopt.Malformed}, fine}},
		{"a whole header", goodSYN, append([]byte{254, 40, 0xdc, 0x11}, make([]byte, 36)...), nil, false, []report{{tcpopt.Congestion, tcpopt.Malformed}, fine}},
		{"truncated by the header's end", goodSYN, []byte{254, 6, 0xdc, 0x11}, nil, false, []report{fine}},
		{"length 0", goodSYN, []byte{254, 0, 0xdc, 0x11, 0, 1, 1, 1}, nil, false, []report{fine}},
		{"length 1", goodSYN, []byte{254, 1, 0xdc, 0x11, 0, 1, 1, 1}, nil, false, []report{fine}},
		{"an unknown id", goodSYN, []byte{254, 6, 0xdc, 0x1f, 0, 1}, [][]byte{{253, 6, 0xdc, 0x11, 0, 1}}, false, []report{fine}},
		{"out of bounds", goodSYN, tcpopt.Append(nil, tcpopt.Request{Option: tcpopt.DelayedACK}), nil, false,
			[]report{{tcpopt.DelayedACK, tcpopt.OutOfBounds}, fine}},
		{"twice in a packet", goodSYN, append(slices.Clone(goodReno), tcpopt.Append(nil, tcpopt.Request{Option: tcpopt.Congestion, Value: 2})...), nil, false,
			[]report{{tcpopt.Congestion, tcpopt.Granted}, fine}},
		{"again and again", goodSYN, goodReno, slices.Repeat([][]byte{goodReno}, 50), false, []report{{tcpopt.Congestion, tcpopt.Granted}, fine}},
		{"not announced", nil, goodReno, [][]byte{goodWindow}, true, []report{fine}},
		{"announced for nothing", announcement(10, 1, 0, 0), goodReno, nil, true, []report{fine}},
		{"announced for another", announcement(10, 1, tcpopt.DelayedACK, 0), goodReno, nil, false, []report{fine}},
		{"another version", announcement(10, 2, allOptions, 0), goodReno, nil, true, []report{fine}},
		{"an announcement that is too short", announcement(6, 1, allOptions, 0), goodReno, nil, true, []report{fine}},
		{"an announcement that is too long", announcement(12, 1, allOptions, 0), goodReno, nil, true, []report{fine}},
		{"bits without a meaning", announcement(10, 1, 0xff, 0xff), goodReno, nil, false, []report{{tcpopt.Congestion, tcpopt.Granted}, fine}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			granted := open(t, ns, granting())
			p, l := newRawPeer(t, ns)
			if _, answered := p.handshake(t, l, c.syn, c.third); answered == c.unanswered {
				t.Errorf("answered: %v", answered)
			}
			for _, options := range append(slices.Clone(c.later), goodTime) {
				p.ackWith(t, options)
			}
			for _, want := range c.want {
				select {
				case r := <-granted.reports:
					if got := (report{r.Request.Option, r.Verdict}); got != want {
						t.Errorf("got %v, want %v", got, want)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("no report of %v", want)
				}
			}
			granted.none(t)
		})
	}
}

func TestRawUserTimeout(t *testing.T) {
	for _, c := range []struct {
		name    string
		bytes   []byte
		verdict tcpopt.Verdict
		granted uint32
	}{
		{"seconds", []byte{28, 4, 0, 30}, tcpopt.Granted, 30},
		{"minutes", []byte{28, 4, 0x80, 1}, tcpopt.Granted, 60},
		{"the longest", []byte{28, 4, 0xff, 0xff}, tcpopt.Capped, 100},
		{"none", []byte{28, 4, 0x80, 0}, tcpopt.OutOfBounds, 0},
		{"too short", []byte{28, 3, 1}, tcpopt.Malformed, 0},
		{"too long", []byte{28, 6, 0, 1, 0, 0}, tcpopt.Malformed, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			granted := open(t, ns, granting())
			p, l := newRawPeer(t, ns)
			p.handshake(t, l, nil, nil) // it is not negotiated
			p.ackWith(t, c.bytes)
			if r := granted.await(t, tcpopt.UserTimeout); r.Verdict != c.verdict || r.Granted != c.granted {
				t.Errorf("%+v, want %v of %d", r, c.verdict, c.granted)
			}
		})
	}
}

// A peer that asks a thousand times a second is heard once, and costs some calls.
func TestThousandRequests(t *testing.T) {
	ns := netnstest.New(t)
	granted := open(t, ns, granting())
	p, l := newRawPeer(t, ns)
	server, _ := p.handshake(t, l, goodSYN, goodReno)
	for i := range 1000 {
		p.ackWith(t, tcpopt.Append(nil, tcpopt.Request{Option: tcpopt.Congestion, Value: uint32(i % 40)}))
	}
	// What was written to a TUN interface was delivered.
	if r := granted.await(t, tcpopt.Congestion); r.Verdict != tcpopt.Granted || congestionOf(t, server) != "reno" {
		t.Errorf("%+v, now %s", r, congestionOf(t, server))
	}
	granted.none(t)
	calls, err := granted.Calls()
	if err != nil {
		t.Fatal(err)
	}
	if calls > 100 {
		t.Errorf("the program was called %d times", calls)
	}
}
