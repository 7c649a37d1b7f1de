package mptcpify

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
)

// maxLeads is the number of connect() calls that a supervisor leads to a converter at a time. More go directly.
const maxLeads = 32

// relayTimeout limits the wait for the relay's answer. Tests on busy machines wait longer.
var relayTimeout = ask.Timeout

// lead is a connect() call that is being led to a converter, on the board: if its supervisor is killed, the other must
// undo what was done to the socket.
type lead struct {
	call notification // id 0: none
	// touched is not 0 once something was done to the socket. sendTimeout is its own, to be restored.
	touched     uint32
	sendTimeout unix.Timeval
}

// converting is a supervisor's part that leads connect() to converters.
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

// connect answers connect(). What needs no converter goes on at once. The rest waits in a goroutine of its own.
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

// begin puts a call on the board. Until the caller of begin removes it from its own place, it is there twice, and
// inherit answers it once.
func (l *lead) begin(n *notification) {
	call := *n
	call.id = 0
	l.call, l.touched, l.sendTimeout = call, 0, unix.Timeval{}
	atomic.StoreUint64(&l.call.id, n.id)
}

// touch notes on the board that the socket is no longer as the program made it.
func (l *lead) touch(sendTimeout unix.Timeval) {
	l.sendTimeout = sendTimeout
	atomic.StoreUint32(&l.touched, 1)
}

func (l *lead) end() { atomic.StoreUint64(&l.call.id, 0) }

// destination returns the address in a connect() call as it is there. It reports false for addresses of this host or its links, and
// if the caller's memory cannot be read. The kernel reads the address again if the call goes on, so that a program
// that changes it meanwhile only deceives itself.
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

// lead answers a connect() call for an address, if possible after connecting to a converter or the relay. Whenever something
// fails, the socket is made as it was and the kernel carries out the program's call.
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
	if _, reaches := sock.instead(server, convert.Converter); sock.nonblocking || !reaches {
		s.toRelay(l, sock, server, convert)
	} else {
		s.toConverter(l, sock, server, convert, began)
	}
}

// toRelay connects a socket to the relay, which is told the server before. On the loopback interface that takes no time, so
// a program that waits may have it, too: where only the relay may connect to the converter, or the socket cannot, or
// could not be taken back. The socket is bound first, so that the relay can recognise it, but to no address: that can be undone.
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

// hasRoute reports whether a network namespace has a route to a server. A connection to the relay succeeds before the
// server is reached, so a program that tries IPv6 first would never try IPv4. It is not known of other namespaces than
// this thread's.
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
	local, err := localPort(sock.fd)
	if err != nil {
		return err
	}
	if local == 0 || !s.converting.relay.Expect(netip.AddrPortFrom(relay.Addr(), local), server) {
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

// goOn has the kernel carry out the program's call on the socket as the program made it.
func (s *supervisor) goOn(l *lead, fd int) {
	if err := undo(fd, l.sendTimeout); err != nil {
		// The kernel's connect() would fail on it, perhaps with an error that misleads.
		_ = answerResult(s.listener, l.call.id, unix.ECONNABORTED)
		return
	}
	_ = answerContinue(s.listener, l.call.id)
}

// undo disconnects a socket. If it is connected, its peer gets a reset. Its options, its place in epoll sets and an
// address that the program bound it to stay.
func undo(fd int, sendTimeout unix.Timeval) error {
	if err := disconnect(fd); err != nil {
		return err
	}
	_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR) // that of our attempt
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &sendTimeout)
}

// takeOver answers a call that the other supervisor was leading when it was killed. It goes directly.
func (s *supervisor) takeOver(l *lead) {
	if l.call.id == 0 {
		return
	}
	defer l.end()
	if l.touched == 0 {
		_ = answerContinue(s.listener, l.call.id)
		return
	}
	// It fails if the caller does not wait any more, so the socket of an answered call is left alone.
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
