package inband

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/packet"
)

// sample is what the tests vary of an IPv4 packet with TCP.
type sample struct {
	from, to   netip.AddrPort
	seq        uint32
	flags      packet.Flags
	ipOptions  []byte
	fragment   uint16 // flags and offset
	protocol   byte
	options    []byte // of TCP, padded to words with zeros
	payload    []byte
	totalLess  int // how many bytes less the IP header says than there are
	truncateTo int // 0: not
}

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

func syn(options []byte) sample {
	return sample{from: clientPort, to: waypointPort, seq: 0x01020304, flags: packet.SYN, options: options}
}

// headerless is the packet as on an interface without link-layer headers.
func (p sample) headerless() []byte {
	built := packet.Segment(p.from, p.to, packet.TCP{Seq: p.seq, Flags: p.flags, Rest: p.options}, p.payload)
	built.V4.Options, built.V4.Fragment = p.ipOptions, p.fragment
	if err := built.Seal(); err != nil {
		panic(err)
	}
	if p.protocol != 0 {
		built.V4.Protocol = p.protocol
	}
	built.V4.Length -= uint16(p.totalLess)
	built.V4.SetChecksum()
	whole := built.Bytes()
	if p.truncateTo > 0 {
		whole = whole[:p.truncateTo]
	}
	return whole
}

func (p sample) ethernet() []byte {
	return append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, p.headerless()...)
}

// checksumHolds says whether the checksums of an IPv4 packet are right.
func checksumHolds(ip []byte) bool {
	p, err := packet.Parse(ip)
	return err == nil && p.Verify() == nil
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
