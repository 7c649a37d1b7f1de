package mptcpify

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// getpeername answers with the server's address for sockets that were led to a converter. Otherwise, and whenever
// something fails, the kernel carries out the call.
func (s *supervisor) getpeername(n *notification) {
	server, family, ok := s.serverOf(n)
	if !ok || !s.writeName(n, encodeSockaddr(family, server)) {
		_ = answerContinue(s.listener, n.id)
		return
	}
	_ = answerResult(s.listener, n.id, 0)
}

func (s *supervisor) serverOf(n *notification) (server netip.AddrPort, family int, ok bool) {
	if !s.shared.hasPeers() {
		return server, 0, false
	}
	fd, err := s.callerFile(n)
	if err != nil {
		return server, 0, false
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return server, 0, false
	}
	server, peer, ok := s.shared.findPeer(cookie)
	if !ok {
		return server, 0, false
	}
	// A program can disconnect a socket and use it for something else.
	name, err := unix.Getpeername(fd)
	if err != nil {
		return server, 0, false
	}
	actual, ok := addrPortOf(name)
	if !ok || actual != peer {
		return server, 0, false
	}
	family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return server, family, err == nil
}

// writeName writes as much of an address as the caller has room for, and its whole length, as the kernel does.
func (s *supervisor) writeName(n *notification, name []byte) bool {
	memory, err := openMemory(n.tid)
	if err != nil {
		return false
	}
	defer memory.Close()
	if !stillWaits(s.listener, n.id) {
		return false
	}
	at, lengthAt := int64(n.args[1]), int64(n.args[2])
	var length [4]byte
	if _, err := memory.ReadAt(length[:], lengthAt); err != nil {
		return false
	}
	room := int32(binary.NativeEndian.Uint32(length[:]))
	if room < 0 {
		return false
	}
	if _, err := memory.WriteAt(name[:min(len(name), int(room))], at); err != nil {
		return false
	}
	binary.NativeEndian.PutUint32(length[:], uint32(len(name)))
	_, err = memory.WriteAt(length[:], lengthAt)
	return err == nil
}

// A peerTable holds the servers of sockets that one supervisor led. Its keys are the sockets' cookies, which are never
// reused, so entries of closed sockets do no harm. It consists of peerSets sets with peerWays entries each. A new entry
// replaces the oldest of its set.
const (
	peerSets = 1024
	peerWays = 8
)

type peerTable struct {
	used uint32 // not 0 after the first entry
	sets [peerSets][peerWays]peer
}

// peer is read by both supervisors and written by one. It is valid while cookie is not 0.
type peer struct {
	cookie         uint64
	since          int64 // monotonic
	server, actual endpoint
}

// endpoint is an address without pointers, for memory that processes share.
type endpoint struct {
	addr [16]byte
	port uint16
}

func endpointOf(a netip.AddrPort) endpoint { return endpoint{a.Addr().As16(), a.Port()} }

func (e endpoint) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(e.addr).Unmap(), e.port)
}

// addPeer notes in the table of a supervisor that the socket with this cookie is connected to actual in place of server.
func (b *board) addPeer(side int, cookie uint64, server, actual netip.AddrPort, now int64) {
	b.peersMu.Lock()
	defer b.peersMu.Unlock()
	table := &b.peers[side]
	set := &table.sets[cookie%peerSets]
	entry := &set[0]
	for i := range set {
		if set[i].cookie == cookie {
			entry = &set[i]
			break
		}
		if set[i].since < entry.since {
			entry = &set[i]
		}
	}
	atomic.StoreUint64(&entry.cookie, 0)
	entry.since, entry.server, entry.actual = now, endpointOf(server), endpointOf(actual)
	atomic.StoreUint64(&entry.cookie, cookie)
	atomic.StoreUint32(&table.used, 1)
}

// hasPeers reports whether any socket was led to a converter.
func (b *board) hasPeers() bool {
	for side := range b.peers {
		if atomic.LoadUint32(&b.peers[side].used) != 0 {
			return true
		}
	}
	return false
}

// findPeer returns the server of a socket, and the address that it is connected to instead. If both tables have the
// socket, the later entry counts: the program has used the socket again.
func (b *board) findPeer(cookie uint64) (server, actual netip.AddrPort, ok bool) {
	b.peersMu.RLock()
	defer b.peersMu.RUnlock()
	var latest peer
	for side := range b.peers {
		set := &b.peers[side].sets[cookie%peerSets]
		for i := range set {
			if atomic.LoadUint64(&set[i].cookie) != cookie {
				continue
			}
			found := set[i]
			// The other supervisor may have written meanwhile.
			if atomic.LoadUint64(&set[i].cookie) == cookie && (!ok || found.since > latest.since) {
				latest, ok = found, true
			}
		}
	}
	return latest.server.addrPort(), latest.actual.addrPort(), ok
}
