package mptcpify

import (
	"fmt"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in the kernel's struct seccomp_data. Arguments have 64 bits. The kernel uses only the lower half of
// socket(2)'s arguments and of connect(2)'s length. The lower half comes first on both architectures.
const (
	offNumber   = 0
	offArch     = 4
	offDomain   = 16 // of socket
	offType     = 24
	offProtocol = 32
	offLength   = 32 // of connect
)

// filterProgram returns a filter that notifies of socket(AF_INET or AF_INET6, SOCK_STREAM with any of CLOEXEC and
// NONBLOCK, 0 or IPPROTO_TCP) and allows everything else. With connects it also notifies of getpeername, and of connect
// with an address of the length of a sockaddr_in, sockaddr_in6 or sockaddr_storage. It allows calls of foreign ABIs,
// whose numbers differ: i386 has another architecture, and x32 a bit in its numbers.
func filterProgram(connects bool) []bpf.Instruction {
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	// The accumulator holds the call's number before and after the part for connects.
	var ofConnects []bpf.Instruction
	if connects {
		const toNotify = uint8(len(ofSockets{}) - 1)
		ofConnects = []bpf.Instruction{
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_GETPEERNAME, SkipTrue: toNotify + 5},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_CONNECT, SkipFalse: 4},
			bpf.LoadAbsolute{Off: offLength, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SizeofSockaddrInet4, SkipTrue: toNotify + 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SizeofSockaddrInet6, SkipTrue: toNotify + 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: sizeofSockaddrStorage, SkipTrue: toNotify, SkipFalse: toNotify - 1},
		}
	}
	sockets := ofSockets{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SOCKET, SkipFalse: 9},
		bpf.LoadAbsolute{Off: offDomain, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipFalse: 6},
		bpf.LoadAbsolute{Off: offType, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(flags)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_STREAM, SkipFalse: 3},
		bpf.LoadAbsolute{Off: offProtocol, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF},
	}
	own := uint8(len(ofConnects) + len(sockets))
	return slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipFalse: own - 1},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
	}, ofConnects, sockets[:])
}

// ofSockets is the part of the filter that decides about socket(). It ends with the two verdicts.
type ofSockets [12]bpf.Instruction

const sizeofSockaddrStorage = 128

func assemble(program []bpf.Instruction) ([]unix.SockFilter, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assemble the seccomp filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, nil
}
