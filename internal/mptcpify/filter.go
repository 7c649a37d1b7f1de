package mptcpify

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in the kernel's struct seccomp_data. Arguments have 64 bits, but the kernel uses those of socket(2) as
// 32-bit integers, so only the lower half matters, which is first on both architectures.
const (
	offNumber   = 0
	offArch     = 4
	offDomain   = 16
	offType     = 24
	offProtocol = 32
)

// filterProgram returns a filter that notifies of socket(AF_INET or AF_INET6, SOCK_STREAM with any of CLOEXEC and
// NONBLOCK, 0 or IPPROTO_TCP) and allows everything else. It allows calls of foreign ABIs, whose numbers differ: it
// recognises i386 by the architecture and x32 by a bit in the numbers.
func filterProgram() []bpf.Instruction {
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipFalse: 11},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
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
}

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
