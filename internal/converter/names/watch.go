package names

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	dnsPort     = 53
	ipv6Header  = 40
	udpHeader   = 8
	protocolUDP = 17
	// mostBytes is the size of the largest answer over UDP. Few are longer than 1,232 bytes.
	mostBytes = 64 << 10
)

// Watcher reads DNS answers. Open makes it.
type Watcher struct{ socket *os.File }

// Open starts receiving the DNS answers over UDP that arrive at this host's interfaces, for its own programs or to
// be forwarded.
func Open() (*Watcher, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // receives nothing yet
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	program, err := bpf.Assemble(answers())
	if err == nil {
		err = attach(fd, program)
	}
	if err == nil {
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("receive DNS answers: %w", err)
	}
	return &Watcher{os.NewFile(uintptr(fd), "DNS answers")}, nil
}

func attach(fd int, program []bpf.RawInstruction) error {
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// answers returns a filter for incoming UDP packets from port 53 that are not fragments.
func answers() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 14},
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 8},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 11},
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 9},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x3fff, SkipTrue: 7}, // a fragment
		bpf.LoadMemShift{Off: 0},                                    // the IPv4 header's length
		bpf.LoadIndirect{Off: 0, Size: 2},
		bpf.Jump{Skip: 3},
		bpf.LoadAbsolute{Off: 6, Size: 1}, // IPv6
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 2},
		bpf.LoadAbsolute{Off: ipv6Header, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: dnsPort, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: mostBytes},
	}
}

// Run calls found for each answer with addresses of names that match, until ctx ends, and closes the watcher. It calls
// both functions from this goroutine.
func (w *Watcher) Run(ctx context.Context, match func(name string) bool, found func([]Address)) error {
	defer context.AfterFunc(ctx, func() { w.socket.Close() })()
	defer w.socket.Close()
	buffer := make([]byte, mostBytes)
	for {
		n, err := w.socket.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("receive DNS answers: %w", err)
		}
		if list := Addresses(payload(buffer[:n]), match); len(list) > 0 {
			found(list)
		}
	}
}

// payload returns the payload of a UDP packet that has passed the filter, or nil if the packet is too short.
func payload(packet []byte) []byte {
	if len(packet) == 0 {
		return nil
	}
	skip := ipv6Header
	if packet[0]>>4 == 4 {
		skip = int(packet[0]&0xf) * 4
	}
	if skip += udpHeader; len(packet) < skip {
		return nil
	}
	return packet[skip:]
}
