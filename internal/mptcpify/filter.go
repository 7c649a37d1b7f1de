package mptcpify

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in the kernel's struct seccomp_data. Arguments are 64 bits wide; the
// kernel takes those of socket(2) as 32-bit integers, so the lower half, first
// on both architectures, is all that counts.
const (
	offNumber   = 0
	offArch     = 4
	offDomain   = 16
	offType     = 24
	offProtocol = 32
)

// filterProgram notifies of socket(AF_INET or AF_INET6, SOCK_STREAM with any
// of CLOEXEC and NONBLOCK, 0 or IPPROTO_TCP) and allows everything else, also
// calls of a foreign ABI, whose numbers mean something else: i386's by the
// architecture, x32's by the bit that its numbers carry.
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
