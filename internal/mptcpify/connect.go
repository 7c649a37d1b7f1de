package mptcpify

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
)

// maxLeads is the number of connect() calls that a supervisor leads to a converter at a time. Further calls
// continue directly.
const maxLeads = 32

// relayTimeout limits the wait for the relay's answer. Tests on busy machines wait longer.
var relayTimeout = ask.Timeout

// lead is a connect() call that is being led to a converter. It is on the board because the other supervisor must undo
// the changes to the socket if this one is killed.
type lead struct {
	call notification // id 0: none
	// touched is not 0 once the socket was changed. sendTimeout is the program's SO_SNDTIMEO, to be restored.
	touched     uint32
	sendTimeout unix.Timeval
}

// converting is the part of a supervisor that leads connect() to converters.
type converting struct {
	relay *ask.Client
	free  chan *lead
}

// newConverting returns nil if the program was started without a relay: the filter then does not notify of connect().
func newConverting(relay string, leads *[maxLeads]lead) *converting {
	if relay == "" {
		return nil
	}
	c := &converting{relay: ask.NewClient(relay, relayTimeout), free: make(chan *lead, maxLeads)}
	for i := range leads {
		c.free <- &leads[i]
	}
	return c
}

// connect answers connect(). Calls that need no converter continue at once. Each other call is answered in its
// own goroutine.
func (s *supervisor) connect(n *notification) {
	called, ok := destination(n)
	if !ok || s.converting == nil {
		_ = answerContinue(s.listener, n.id)
		return
	}
	if direct, plain := s.converting.relay.Direct(unmapped(called)); direct {
		if plain {
			s.makePlain(n)
		}
		_ = answerContinue(s.listener, n.id)
		return
	}
	select {
	case l := <-s.converting.free:
		l.begin(n)
		go func() {
			defer func() { s.converting.free <- l }()
			s.lead(l, called)
			l.end()
		}()
	default:
		_ = answerContinue(s.listener, n.id)
	}
}

// begin puts a call on the board as a lead. The call is on the board twice until its worker removes its entry. inherit
// answers such a call once.
func (l *lead) begin(n *notification) {
	call := *n
	call.id = 0
	l.call, l.touched, l.sendTimeout = call, 0, unix.Timeval{}
	atomic.StoreUint64(&l.call.id, n.id)
}

// touch notes on the board that the socket was changed.
func (l *lead) touch(sendTimeout unix.Timeval) {
	l.sendTimeout = sendTimeout
	atomic.StoreUint32(&l.touched, 1)
}

func (l *lead) end() { atomic.StoreUint64(&l.call.id, 0) }

// destination returns the address in a connect() call, IPv4-mapped or not. It reports false for addresses of this host
// or its links, and if the caller's memory cannot be read. If the call continues, the kernel reads the address again,
// so a program that changes it meanwhile harms only itself.
func destination(n *notification) (netip.AddrPort, bool) {
	raw := make([]byte, unix.SizeofSockaddrInet6)
	raw = raw[:min(len(raw), int(uint32(n.args[2])))]
	if err := readMemory(n.tid, n.args[1], raw); err != nil {
		return netip.AddrPort{}, false
	}
	called, ok := decodeSockaddr(raw)
	if !ok {
		return netip.AddrPort{}, false
	}
	addr := called.Addr().Unmap()
	local := addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast()
	return called, !local && called.Port() != 0
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// lead answers a connect() call. If possible, it connects the socket to a converter or the relay first. If anything
// fails, it undoes what was done to the socket, and the kernel carries out the program's call.
func (s *supervisor) lead(l *lead, called netip.AddrPort) {
	began, server := time.Now(), unmapped(called)
	program, err := executableOf(l.call.tid)
	if err != nil || s.converting.relay.Excludes(program) {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	sock, err := s.callerSocket(&l.call)
	if err != nil {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	defer unix.Close(sock.fd)
	if !sock.takes(called) { // the program is to get the kernel's error
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	answer := s.converting.relay.Ask(server)
	if answer.Plain {
		s.makePlain(&l.call)
	}
	convert := answer.Convert
	if convert == nil || !sock.in(convert.Namespace) {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	_, reaches := sock.instead(server, convert.Converter)
	switch {
	case sock.nonblocking || !convert.Converter.IsValid():
		s.toRelay(l, sock, server, convert)
	case reaches:
		s.toConverter(l, sock, server, convert, began)
	default:
		// The relay would reach the converter. But the program would be connected before the server is reached, would not see
		// the server's errno, and would not try the server's next address.
		_ = answerContinue(s.listener, l.call.id)
	}
}

// toRelay connects a socket to the relay, after telling the relay the server. It is for non-blocking sockets, and for
// blocking ones if a relay of an older version names no converter because only itself can reach it, through a tunnel.
// Connecting over loopback takes no time.
// The socket is bound to a port first, so that the relay can recognise the connection. It is not bound to an address,
// because that could not be undone.
func (s *supervisor) toRelay(l *lead, sock callerSocket, server netip.AddrPort, convert *ask.Convert) {
	relay, ok := sock.relay(server, convert)
	if !ok || sock.bound || !hasRoute(server, convert.Namespace) {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	l.touch(sock.sendTimeout)
	err := s.connectToRelay(sock, relay, server)
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		s.goOn(l, sock.fd)
		return
	}
	s.shared.addPeer(s.side, sock.cookie, server, relay, monotonic())
	errno, _ := errors.AsType[unix.Errno](err)
	_ = answerResult(s.listener, l.call.id, errno)
}

// hasRoute reports whether a network namespace has a route to a server. It reports true for namespaces other than this
// thread's, where it cannot look. Without a route, the connection to the relay would still succeed, and a program that
// tries IPv6 first would never try IPv4.
func hasRoute(server netip.AddrPort, namespace uint64) bool {
	family := unix.AF_INET
	if server.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	probe := callerSocket{fd: fd, family: family}
	to, ok := probe.sockaddr(server)
	return ok && (!probe.in(namespace) || unix.Connect(fd, to) == nil) // sends nothing
}

func (s *supervisor) connectToRelay(sock callerSocket, relay, server netip.AddrPort) error {
	if err := unix.Bind(sock.fd, wildcard(sock.family)); err != nil {
		return err
	}
	bound, err := localAddr(sock.fd)
	if err != nil {
		return err
	}
	if bound.Port() == 0 || !s.converting.relay.Expect(netip.AddrPortFrom(relay.Addr(), bound.Port()), server) {
		return errNotExpected
	}
	target, _ := sock.sockaddr(relay)
	err = unix.Connect(sock.fd, target)
	// On the loopback interface a refusal comes at once.
	if errors.Is(err, unix.EINPROGRESS) && isClosed(sock.fd) {
		return unix.ECONNREFUSED
	}
	return err
}

var errNotExpected = errors.New("the relay does not serve this connection")

// goOn undoes the changes to the socket and lets the kernel carry out the program's call.
func (s *supervisor) goOn(l *lead, fd int) {
	if err := undo(fd, l.sendTimeout); err != nil {
		// The kernel's connect() would fail on this socket, perhaps with a misleading error.
		_ = answerResult(s.listener, l.call.id, unix.ECONNABORTED)
		return
	}
	_ = answerContinue(s.listener, l.call.id)
}

// undo disconnects a socket and restores its SO_SNDTIMEO. If it is connected, its peer gets a reset. The other options,
// the socket's place in epoll sets and an address that the program bound it to stay.
func undo(fd int, sendTimeout unix.Timeval) error {
	if err := disconnect(fd); err != nil {
		return err
	}
	_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR) // clears the error of our attempt
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &sendTimeout)
}

// takeOver answers a call that the other supervisor was leading when it was killed. The call continues directly.
func (s *supervisor) takeOver(l *lead) {
	if l.call.id == 0 {
		return
	}
	defer l.end()
	if l.touched == 0 {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	// callerFile fails if the caller does not wait any more, so the socket of an answered call is left alone.
	fd, err := s.callerFile(&l.call)
	if err != nil {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	defer unix.Close(fd)
	s.goOn(l, fd)
}

// monotonic returns a time that both supervisors can compare.
func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	return now.Nano()
}

// remaining returns the time until a deadline in whole milliseconds, at least 0.
func remaining(deadline time.Time) int { return max(0, int(time.Until(deadline).Milliseconds())) }
