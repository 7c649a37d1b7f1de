// Package inband implements both ends of in-band detours with eBPF programs: one end writes a server's address into a
// SYN, the other marks authentic SYNs of this kind for netfilter. It deals with sockets, packets, keys and marks, not
// with waypoints. Only internal/agent, internal/tunnel, internal/waypoint, internal/doctor and lab/bench may import it.
//
// The option is an experimental one (RFC 6994) of eight bytes: kind 254, length 8, experiment id 0xdc01, IPv4 address
// of the server. The SYN of an MPTCP join has no room for more.
//
// The authenticator is 32 bits in the TSecr of the same SYN, which has no meaning there (RFC 7323, section 3.2). It is
// SipHash-2-4 over the fields that the receiver uses and those that differ in every SYN (see [Authenticator]).
//
// A [Sender] has two programs. The first, at the sockets' hook (sockops, on a cgroup), writes the option into the SYNs
// of expected joins only. The second, at tc's egress, computes the authenticator. A [Receiver] has one program at tc's
// ingress, before netfilter. It checks the authenticator, refuses replays, clears the TSecr and sets the packet's mark.
// SYNs that it does not accept pass unchanged, without a mark.
//
// CAP_BPF and CAP_NET_ADMIN are enough, except for adopting an earlier process's keys, which needs CAP_SYS_ADMIN.
package inband

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type tuple -type join -tags linux send send.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type slots -type counters -tags linux receive receive.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// Key is the key of an authenticator.
type Key [16]byte

// Auth contains what the sender of a SYN needs for the authenticator.
type Auth struct {
	Key    Key
	Client netip.Addr // of the sender, as the receiver sees it
	// ClientPort reports that no NAT rewrites the sender's port, so that the authenticator covers it.
	ClientPort bool
}

// Join describes a connection that will be opened with the option in its SYN. All addresses are IPv4.
type Join struct {
	Local, Remote netip.AddrPort
	Server        netip.Addr
	Auth          *Auth // nil: no authenticator; the TSecr does not change
}

// ErrNoTimestamps means that the namespace's SYNs have no TSecr.
var ErrNoTimestamps = errors.New("TCP timestamps are off, and the authenticator is carried in them (sysctl -w net.ipv4.tcp_timestamps=1)")

func (j Join) validate() error {
	addresses := []netip.Addr{j.Local.Addr(), j.Remote.Addr(), j.Server}
	if j.Auth != nil {
		addresses = append(addresses, j.Auth.Client)
	}
	for _, a := range addresses {
		if !a.Unmap().Is4() {
			return fmt.Errorf("join from %v to %v by way of the option: %v is not an IPv4 address", j.Local, j.Remote, a)
		}
	}
	if j.Local.Port() == 0 || j.Remote.Port() == 0 {
		return fmt.Errorf("join from %v to %v by way of the option: both ports must be known before", j.Local, j.Remote)
	}
	return nil
}

// wire32 returns an IPv4 address in network byte order.
func wire32(a netip.Addr) uint32 {
	b := a.Unmap().As4()
	return binary.NativeEndian.Uint32(b[:])
}

func keyOf(halves [2]uint64) (k Key) {
	binary.LittleEndian.PutUint64(k[:8], halves[0])
	binary.LittleEndian.PutUint64(k[8:], halves[1])
	return k
}

func (k Key) halves() [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(k[:8]), binary.LittleEndian.Uint64(k[8:])}
}
