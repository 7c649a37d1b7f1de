package mptcpify

import (
	"encoding/binary"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestStructSizes holds our structures against the sizes that the kernel put into the ioctl numbers.
func TestStructSizes(t *testing.T) {
	const sizeShift, sizeMask = 16, 1<<14 - 1
	for _, c := range []struct {
		name    string
		size    uintptr
		request uintptr
	}{
		{"notification", unsafe.Sizeof(notification{}), unix.SECCOMP_IOCTL_NOTIF_RECV},
		{"answer", unsafe.Sizeof(answer{}), unix.SECCOMP_IOCTL_NOTIF_SEND},
		{"fdAnswer", unsafe.Sizeof(fdAnswer{}), unix.SECCOMP_IOCTL_NOTIF_ADDFD},
	} {
		if want := c.request >> sizeShift & sizeMask; c.size != want {
			t.Errorf("%s has %d bytes, the kernel's has %d", c.name, c.size, want)
		}
	}
}

type call struct {
	connects                 bool // the filter is one with connects
	arch, number             uint32
	domain, typ, protocol    uint32
	domainHigh, protocolHigh uint32
}

// verdict runs the filter in user space. The virtual machine reads words in network order, the kernel in its own.
func (c call) verdict(t interface{ Fatal(...any) }) uint32 {
	vm, err := bpf.NewVM(filterProgram(c.connects))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	for off, word := range map[int]uint32{
		offNumber: c.number, offArch: c.arch,
		offDomain: c.domain, offDomain + 4: c.domainHigh,
		offType:     c.typ,
		offProtocol: c.protocol, offProtocol + 4: c.protocolHigh,
	} {
		binary.BigEndian.PutUint32(data[off:], word)
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

// ours reports whether the filter should notify of a call. It is written in another way than the filter.
func (c call) ours() bool {
	if c.arch != auditArch {
		return false
	}
	switch c.number {
	case unix.SYS_GETPEERNAME:
		return c.connects
	case unix.SYS_CONNECT:
		length := c.protocol // the third argument, too
		return c.connects && slices.Contains([]uint32{16, 28, 128}, length)
	case unix.SYS_SOCKET:
	default:
		return false
	}
	family := c.domain == unix.AF_INET || c.domain == unix.AF_INET6
	protocol := c.protocol == 0 || c.protocol == unix.IPPROTO_TCP
	switch c.typ {
	case unix.SOCK_STREAM, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.SOCK_STREAM | unix.SOCK_NONBLOCK,
		unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK:
		return family && protocol
	}
	return false
}

func TestFilterNotifiesOfTCPSocketsOnly(t *testing.T) {
	const x32Bit = 0x40000000
	oneOf := rapid.SampledFrom[[]uint32, uint32]
	either := func(values ...uint32) *rapid.Generator[uint32] { return rapid.OneOf(oneOf(values), rapid.Uint32()) }
	streams := []uint32{unix.SOCK_STREAM, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.SOCK_STREAM | unix.SOCK_NONBLOCK,
		unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK}
	notified, allowed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		// A call of which the filter notifies. Up to two of its values are then changed.
		c := call{
			connects:     rapid.Bool().Draw(t, "connects"),
			arch:         auditArch,
			number:       unix.SYS_SOCKET,
			domain:       oneOf([]uint32{unix.AF_INET, unix.AF_INET6}).Draw(t, "domain"),
			typ:          oneOf(streams).Draw(t, "type"),
			protocol:     oneOf([]uint32{0, unix.IPPROTO_TCP}).Draw(t, "protocol"),
			domainHigh:   rapid.Uint32().Draw(t, "domain's upper half"),
			protocolHigh: rapid.Uint32().Draw(t, "protocol's upper half"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			switch rapid.SampledFrom([]string{"arch", "number", "domain", "type", "protocol"}).Draw(t, "change") {
			case "arch":
				c.arch = either(unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM).Draw(t, "arch")
			case "number":
				c.number = either(unix.SYS_SOCKET|x32Bit, unix.SYS_SOCKETPAIR, unix.SYS_CONNECT, unix.SYS_GETPEERNAME).Draw(t, "number")
			case "domain":
				c.domain = either(unix.AF_UNIX, unix.AF_NETLINK).Draw(t, "other domain")
			case "type":
				c.typ = either(unix.SOCK_DGRAM, unix.SOCK_STREAM|1<<20).Draw(t, "other type")
			case "protocol":
				c.protocol = either(unix.IPPROTO_MPTCP, unix.IPPROTO_UDP, 16, 28, 128).Draw(t, "other protocol")
			}
		}
		want := uint32(unix.SECCOMP_RET_ALLOW)
		if c.ours() {
			want = unix.SECCOMP_RET_USER_NOTIF
			notified++
		} else {
			allowed++
		}
		if got := c.verdict(t); got != want {
			t.Fatalf("%+v: verdict %#x, want %#x", c, got, want)
		}
	})
	if notified == 0 || allowed == 0 {
		t.Errorf("the examples are one-sided: %d notified, %d allowed", notified, allowed)
	}
}

// TestFilterNotifiesOfEach makes sure that no accepted combination is missed.
func TestFilterNotifiesOfEach(t *testing.T) {
	for _, domain := range []uint32{unix.AF_INET, unix.AF_INET6} {
		for _, flags := range []uint32{0, unix.SOCK_CLOEXEC, unix.SOCK_NONBLOCK, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK} {
			for _, protocol := range []uint32{0, unix.IPPROTO_TCP} {
				c := call{arch: auditArch, number: unix.SYS_SOCKET, domain: domain, typ: unix.SOCK_STREAM | flags, protocol: protocol}
				if got := c.verdict(t); got != unix.SECCOMP_RET_USER_NOTIF {
					t.Errorf("%+v: verdict %#x", c, got)
				}
			}
		}
	}
}

func TestFilterNotifiesOfConnects(t *testing.T) {
	for _, c := range []call{
		{number: unix.SYS_CONNECT, protocol: unix.SizeofSockaddrInet4},
		{number: unix.SYS_CONNECT, protocol: unix.SizeofSockaddrInet6},
		{number: unix.SYS_CONNECT, protocol: sizeofSockaddrStorage},
		{number: unix.SYS_CONNECT, protocol: unix.SizeofSockaddrUnix},
		{number: unix.SYS_GETPEERNAME},
		{number: unix.SYS_BIND, protocol: unix.SizeofSockaddrInet4},
	} {
		for _, c.connects = range []bool{false, true} {
			for _, c.arch = range []uint32{auditArch, unix.AUDIT_ARCH_I386} {
				want := uint32(unix.SECCOMP_RET_ALLOW)
				if c.ours() {
					want = unix.SECCOMP_RET_USER_NOTIF
				}
				if got := c.verdict(t); got != want {
					t.Errorf("%+v: verdict %#x, want %#x", c, got, want)
				}
			}
		}
	}
}

// TestFilterAllowsNeighbours changes one thing at a time.
func TestFilterAllowsNeighbours(t *testing.T) {
	ours := call{arch: auditArch, number: unix.SYS_SOCKET, domain: unix.AF_INET, typ: unix.SOCK_STREAM}
	for name, change := range map[string]func(*call){
		"i386":         func(c *call) { c.arch = unix.AUDIT_ARCH_I386 },
		"arm":          func(c *call) { c.arch = unix.AUDIT_ARCH_ARM },
		"x32":          func(c *call) { c.number |= 0x40000000 },
		"another call": func(c *call) { c.number++ },
		"unix":         func(c *call) { c.domain = unix.AF_UNIX },
		"netlink":      func(c *call) { c.domain = unix.AF_NETLINK },
		"datagram":     func(c *call) { c.typ = unix.SOCK_DGRAM },
		"raw":          func(c *call) { c.typ = unix.SOCK_RAW },
		"unknown flag": func(c *call) { c.typ |= 1 << 20 },
		"sctp":         func(c *call) { c.protocol = unix.IPPROTO_SCTP },
		"mptcp":        func(c *call) { c.protocol = unix.IPPROTO_MPTCP },
	} {
		c := ours
		change(&c)
		if got := c.verdict(t); got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("%s: verdict %#x", name, got)
		}
	}
	if got := ours.verdict(t); got != unix.SECCOMP_RET_USER_NOTIF {
		t.Errorf("unchanged: verdict %#x", got)
	}
}
