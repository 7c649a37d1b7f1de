package connect

import (
	"encoding/binary"
	"net/netip"

	"github.com/cilium/ebpf"
)

// endpoint is struct endpoint of redirect.c.
type endpoint struct {
	Addr [16]byte
	Port uint64
}

func encodeEndpoint(a netip.AddrPort) endpoint {
	return endpoint{Addr: a.Addr().As16(), Port: encodePort(a.Port())}
}

func (e endpoint) decode() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(e.Addr).Unmap(), binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, uint16(e.Port))))
}

// network is struct network of redirect.c.
type network struct {
	Bits uint32
	Zero uint32
	Addr [16]byte
}

func encodeNetwork(p netip.Prefix) network {
	n := network{Bits: 32 + uint32(p.Bits()), Addr: p.Masked().Addr().As16()}
	if p.Addr().Is4() {
		n.Bits += 96
	}
	return n
}

// encodePort returns a port in network byte order.
func encodePort(port uint16) uint64 {
	return uint64(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port)))
}

// table is a map in the kernel, with a copy of its content.
type table[K comparable, W any] struct {
	kernel *ebpf.Map
	encode func(K) W
	has    map[K]struct{}
}

// set makes the table contain these entries and no others.
func (t *table[K, W]) set(want map[K]struct{}) error {
	if t.has == nil {
		t.has = make(map[K]struct{})
	}
	for k := range t.has {
		if _, ok := want[k]; ok {
			continue
		}
		key := t.encode(k)
		if err := t.kernel.Delete(&key); err != nil {
			return err
		}
		delete(t.has, k)
	}
	for k := range want {
		if _, ok := t.has[k]; ok {
			continue
		}
		key := t.encode(k)
		if err := t.kernel.Put(&key, uint8(0)); err != nil {
			return err
		}
		t.has[k] = struct{}{}
	}
	return nil
}
