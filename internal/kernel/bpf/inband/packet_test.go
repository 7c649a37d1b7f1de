package inband

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

// packet is what the tests vary of an IPv4 packet with TCP.
type packet struct {
	from, to   netip.AddrPort
	seq        uint32
	flags      byte
	ipOptions  []byte
	fragment   uint16 // flags and offset
	protocol   byte
	options    []byte // of TCP, padded to words with zeros
	payload    []byte
	totalLess  int // how many bytes less the IP header says than there are
	truncateTo int // 0: not
}

const (
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
	flagECE = 0x40
)

var (
	clientPort   = netip.MustParseAddrPort("8.0.1.2:40000") // 8.0: see headerless
	waypointPort = netip.MustParseAddrPort("10.0.2.2:443")
	serverAddr   = netip.MustParseAddr("10.0.3.2")
)

func optionTimestamps(tsval, tsecr uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{8, 10}, tsval), tsecr)
}

func optionDetour(server netip.Addr) []byte {
	b := server.As4()
	return append([]byte{254, 8, 0xdc, 0x01}, b[:]...)
}

// joinOptions are those of the SYN of an MPTCP join, in the kernel's order.
func joinOptions(tsval, tsecr uint32, detour []byte) []byte {
	return slices.Concat([]byte{2, 4, 5, 180, 4, 2}, optionTimestamps(tsval, tsecr), []byte{1, 3, 3, 7},
		[]byte{30, 12, 0x10, 1, 1, 2, 3, 4, 5, 6, 7, 8}, detour)
}

func syn(options []byte) packet {
	return packet{from: clientPort, to: waypointPort, seq: 0x01020304, flags: flagSYN, options: options}
}

// headerless is the packet as on an interface without link-layer headers.
func (p packet) headerless() []byte {
	for len(p.options)%4 != 0 {
		p.options = append(slices.Clip(p.options), 0)
	}
	if p.protocol == 0 {
		p.protocol = 6
	}
	from, to := p.from.Addr().As4(), p.to.Addr().As4()
	ip := make([]byte, 20, 120)
	ip[0] = 0x40 | byte(5+len(p.ipOptions)/4)
	total := 20 + len(p.ipOptions) + 20 + len(p.options) + len(p.payload)
	binary.BigEndian.PutUint16(ip[2:], uint16(total-p.totalLess))
	binary.BigEndian.PutUint16(ip[6:], p.fragment)
	ip[8], ip[9] = 64, p.protocol
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	ip = append(ip, p.ipOptions...)
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip, 0))

	tcp := make([]byte, 20, 80)
	binary.BigEndian.PutUint16(tcp, p.from.Port())
	binary.BigEndian.PutUint16(tcp[2:], p.to.Port())
	binary.BigEndian.PutUint32(tcp[4:], p.seq)
	tcp[12] = byte(5+len(p.options)/4) << 4
	tcp[13] = p.flags
	tcp = slices.Concat(tcp, p.options, p.payload)
	binary.BigEndian.PutUint16(tcp[16:], ^sum(tcp, pseudoSum(from, to, len(tcp))))

	whole := slices.Concat(ip, tcp)
	if p.truncateTo > 0 {
		whole = whole[:p.truncateTo]
	}
	return whole
}

func (p packet) ethernet() []byte {
	return append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, p.headerless()...)
}

func pseudoSum(from, to [4]byte, size int) uint16 {
	return sum(slices.Concat(from[:], to[:], []byte{0, 6}, binary.BigEndian.AppendUint16(nil, uint16(size))), 0)
}

// sum is RFC 1071's, not complemented.
func sum(b []byte, start uint16) uint16 {
	s := uint32(start)
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i]) << 8
		if i+1 < len(b) {
			s += uint32(b[i+1])
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// checksumHolds says whether the TCP checksum of an IPv4 packet is right.
func checksumHolds(ip []byte) bool {
	tcp := ip[int(ip[0]&15)*4:]
	return sum(tcp, pseudoSum([4]byte(ip[12:16]), [4]byte(ip[16:20]), len(tcp))) == 0xffff
}

// skBuff is the kernel's struct __sk_buff, as far as a test run takes it.
type skBuff struct {
	Len, PacketType, Mark uint32
	_                     [45]uint32
}

// run has the kernel run a tc program over an Ethernet frame. A frame whose
// source address is 8.0.x.y also serves as a packet without a link-layer
// header: the kernel takes the place where the frame type would be for one, as
// the address begins like that of IPv4, 0x0800.
func run(t testing.TB, program *ebpf.Program, frame []byte, mark uint32) (after []byte, newMark uint32) {
	t.Helper()
	in := skBuff{Mark: mark}
	var out skBuff
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64), Context: &in, ContextOut: &out}
	verdict, err := program.Run(options)
	if err != nil {
		t.Fatalf("test run: %v", err)
	}
	if int32(verdict) != -1 {
		t.Fatalf("verdict %d: the packet does not go on", int32(verdict))
	}
	return bytes.Clone(options.DataOut), out.Mark
}
