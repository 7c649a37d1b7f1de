package mptcp

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Netlink attributes are decoded here by hand, because events and dumps come in tens of thousands and decoding must not
// allocate memory.

var errTruncated = errors.New("netlink attributes are cut short")

const (
	attrHeaderLen = 4
	attrTypeMask  = 0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
)

// nextAttr splits off the first attribute of b.
func nextAttr(b []byte) (typ uint16, payload, rest []byte, err error) {
	if len(b) < attrHeaderLen {
		return 0, nil, nil, errTruncated
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < attrHeaderLen || n > len(b) {
		return 0, nil, nil, errTruncated
	}
	typ = binary.NativeEndian.Uint16(b[2:]) & attrTypeMask
	return typ, b[attrHeaderLen:n], b[min(align4(n), len(b)):], nil
}

func align4(n int) int { return (n + 3) &^ 3 }

// The readers below accept a payload of any length. A short one yields zero, like a missing attribute.

func u8(b []byte) uint8 {
	if len(b) < 1 {
		return 0
	}
	return b[0]
}

func u16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

func be16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func u64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.NativeEndian.Uint64(b)
}

func ip4(b []byte) netip.Addr {
	if len(b) < 4 {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(b))
}

func ip6(b []byte) netip.Addr {
	if len(b) < 16 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}
