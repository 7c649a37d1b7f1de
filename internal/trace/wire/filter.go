package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The places of fields in what a raw socket of ICMP delivers: IPv4's header, ICMP's header of 8 bytes, the quote; over
// IPv6 without the first.
const (
	icmpHeader      = 8
	source4, quote4 = 12, 16 // the source of an IPv4 header, the destination of a quoted one
	quote6          = 24     // the destination of a quoted IPv6 header
)

// hearOnly has the kernel drop ICMP errors that quote a packet to another destination, and echo replies of others.
func hearOnly(fd int, destination netip.Addr) error {
	var program []bpf.Instruction
	if destination.Is4() {
		program = filter4(destination)
	} else {
		program = filter6(destination)
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("filter ICMP: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		return fmt.Errorf("filter ICMP: %w", err)
	}
	return nil
}

const whole = 1 << 18 // bytes of an accepted packet

func filter4(destination netip.Addr) []bpf.Instruction {
	b := destination.As4()
	want := binary.BigEndian.Uint32(b[:])
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: source4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: want, SkipTrue: 3}, // the destination itself
		bpf.LoadMemShift{Off: 0},                                // the length of the IP header
		bpf.LoadIndirect{Off: icmpHeader + quote4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: want, SkipTrue: 1},
		bpf.RetConstant{Val: whole},
		bpf.RetConstant{Val: 0},
	}
}

// filter6 hears all that is no error: raw sockets of IPv6 do not see the source.
func filter6(destination netip.Addr) []bpf.Instruction {
	const firstInformation = 128 // types from here on are no errors (RFC 4443)
	b := destination.As16()
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: firstInformation, SkipTrue: 8},
	}
	for i := range 4 {
		program = append(program,
			bpf.LoadAbsolute{Off: icmpHeader + quote6 + uint32(4*i), Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(b[4*i:]), SkipTrue: uint8(2*(3-i) + 1)})
	}
	return append(program, bpf.RetConstant{Val: whole}, bpf.RetConstant{Val: 0})
}
