package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

// Stages of a connection, with the programs' numbers.
const (
	watched uint32 = iota
	forwarded
	ended
)

// way is one direction of a connection.
type way struct {
	in, out Tuple // addresses of its packets when they come in and when they leave
	stage   uint32
	numbers Numbers
	bytes   uint64
}

// put adds a way, unless it is there already.
func (f *Forwarder) put(w way) (err error) {
	if is4(w.in) != is4(w.out) || is4(w.in) != is4(w.in.reversed()) || is4(w.out) != is4(w.out.reversed()) {
		return fmt.Errorf("%v cannot become %v: not all are of one family", w.in, w.out)
	}
	change := forwardChange{
		Addresses: addressesChange(w), Ports: portsChange(w), Stage: w.stage,
		Begun: w.numbers.Begun, Next: w.numbers.Next, Ack: w.numbers.Ack, Bytes: w.bytes,
	}
	if is4(w.in) {
		err = f.objects.Ways4.Update(tuple4(w.in), &forwardWay4{Out: tuple4(w.out), Change: change}, ebpf.UpdateNoExist)
	} else {
		err = f.objects.Ways6.Update(tuple6(w.in), &forwardWay6{Out: tuple6(w.out), Change: change}, ebpf.UpdateNoExist)
	}
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	return err
}

// take removes a way, if it is there.
func (f *Forwarder) take(in Tuple) (forwardChange, error) {
	if is4(in) {
		var way forwardWay4
		err := f.objects.Ways4.LookupAndDelete(tuple4(in), &way)
		return way.Change, ifThere(err)
	}
	var way forwardWay6
	err := f.objects.Ways6.LookupAndDelete(tuple6(in), &way)
	return way.Change, ifThere(err)
}

// look reads a way, if it is there.
func (f *Forwarder) look(in Tuple) (forwardChange, error) {
	if is4(in) {
		var way forwardWay4
		err := f.objects.Ways4.Lookup(tuple4(in), &way)
		return way.Change, ifThere(err)
	}
	var way forwardWay6
	err := f.objects.Ways6.Lookup(tuple6(in), &way)
	return way.Change, ifThere(err)
}

func (c forwardChange) numbers() Numbers { return Numbers{Begun: c.Begun, Next: c.Next, Ack: c.Ack} }

func ifThere(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// readLeft reads the byte counts of an earlier process, by the addresses of incoming packets.
func readLeft(handle *netlink.Handle, spec *ebpf.CollectionSpec) (map[Tuple]uint64, error) {
	const name4, name6 = "ways4", "ways6"
	maps, err := tcfilter.Adopt(handle, filterName, spec, name4, name6)
	if err != nil || len(maps) == 0 {
		return nil, err
	}
	defer maps.Close()
	left := make(map[Tuple]uint64)
	var (
		in4  forwardTuple4
		way4 forwardWay4
	)
	all4 := maps[name4].Iterate()
	for all4.Next(&in4, &way4) {
		left[in4.tuple()] = way4.Change.Bytes
	}
	var (
		in6  forwardTuple6
		way6 forwardWay6
	)
	all6 := maps[name6].Iterate()
	for all6.Next(&in6, &way6) {
		left[in6.tuple()] = way6.Change.Bytes
	}
	if err := errors.Join(all4.Err(), all6.Err()); err != nil {
		return nil, fmt.Errorf("read what an earlier process has forwarded: %w", err)
	}
	return left, nil
}

func is4(t Tuple) bool { return t.Src.Addr().Unmap().Is4() }

func tuple4(t Tuple) forwardTuple4 {
	return forwardTuple4{Src: word(t.Src.Addr()), Dst: word(t.Dst.Addr()), Sport: wirePort(t.Src), Dport: wirePort(t.Dst)}
}

func tuple6(t Tuple) forwardTuple6 {
	return forwardTuple6{Src: words(t.Src.Addr()), Dst: words(t.Dst.Addr()), Sport: wirePort(t.Src), Dport: wirePort(t.Dst)}
}

func (t forwardTuple4) tuple() Tuple {
	address := func(word uint32) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, word)))
	}
	return Tuple{netip.AddrPortFrom(address(t.Src), port(t.Sport)), netip.AddrPortFrom(address(t.Dst), port(t.Dport))}
}

func (t forwardTuple6) tuple() Tuple {
	address := func(words [4]uint32) netip.Addr {
		var b []byte
		for _, w := range words {
			b = binary.NativeEndian.AppendUint32(b, w)
		}
		return netip.AddrFrom16([16]byte(b))
	}
	return Tuple{netip.AddrPortFrom(address(t.Src), port(t.Sport)), netip.AddrPortFrom(address(t.Dst), port(t.Dport))}
}

// The functions below convert addresses and ports to and from the programs' format, which is that of packets.

func word(a netip.Addr) uint32 {
	b := a.Unmap().As4()
	return binary.NativeEndian.Uint32(b[:])
}

func words(a netip.Addr) (w [4]uint32) {
	b := a.As16()
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w
}

func wirePort(a netip.AddrPort) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, a.Port()))
}

func port(wire uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, wire))
}

// addressesChange and portsChange return the change of the ones' complement sum over addresses and ports: the new ones
// minus the old ones (RFC 1624, equation 3).

func addressesChange(w way) uint32 {
	var sum onesSum
	for _, a := range []netip.Addr{w.out.Src.Addr(), w.out.Dst.Addr()} {
		sum.add(a.Unmap().AsSlice(), 0)
	}
	for _, a := range []netip.Addr{w.in.Src.Addr(), w.in.Dst.Addr()} {
		sum.add(a.Unmap().AsSlice(), 0xffff)
	}
	return sum.folded()
}

func portsChange(w way) uint32 {
	sum := onesSum(wirePort(w.out.Src)) + onesSum(wirePort(w.out.Dst)) +
		onesSum(^wirePort(w.in.Src)) + onesSum(^wirePort(w.in.Dst))
	return sum.folded()
}

// onesSum is a ones' complement sum of 16-bit words in memory order, before its carries are added.
type onesSum uint32

func (s *onesSum) add(b []byte, flip uint16) {
	for ; len(b) > 0; b = b[2:] {
		*s += onesSum(binary.NativeEndian.Uint16(b) ^ flip)
	}
}

func (s onesSum) folded() uint32 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint32(s)
}
