package mptcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// LosesOverlaps reports whether the kernel loses data of connections that began as MPTCP and became plain TCP. Kernels
// with this defect drop a segment that begins with bytes they already have, although new bytes follow. A sender makes
// such segments when it sends several small ones again as one. The program then receives later data as if nothing were
// missing, or receives nothing more.
//
// It opens connections over the loopback interface of the calling thread's network namespace. The interface must be up,
// and the namespace must have no other MPTCP connections in the meantime. It needs CAP_NET_ADMIN and a kernel with
// CONFIG_CHECKPOINT_RESTORE.
func LosesOverlaps() (bool, error) {
	loses, err := losesOverlaps(unix.IPPROTO_MPTCP)
	if err != nil {
		return false, fmt.Errorf("try a connection without MPTCP at its server: %w", err)
	}
	return loses, nil
}

// losesOverlaps runs the test with a client of a protocol.
func losesOverlaps(protocol int) (loses bool, err error) {
	listener, err := newEnd(unix.IPPROTO_TCP)
	if err != nil {
		return false, err
	}
	defer listener.close()
	if err := errors.Join(unix.Bind(listener.fd, loopback(0)), unix.Listen(listener.fd, 1)); err != nil {
		return false, err
	}
	at, err := unix.Getsockname(listener.fd)
	if err != nil {
		return false, err
	}
	client, err := newEnd(protocol)
	if err != nil {
		return false, err
	}
	defer client.close()
	if err := unix.Connect(client.fd, at); err != nil {
		return false, err
	}
	fd, from, err := unix.Accept4(listener.fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return false, err
	}
	server := end{fd}
	defer server.close()

	counters := openCounters()
	defer func() { err = errors.Join(err, counters.close()) }()
	before, err := counters.read(droppedAsOld)
	if err != nil {
		return false, err
	}
	if err := errors.Join(server.send(2*overlap), client.receive(2*overlap)); err != nil {
		return false, err
	}
	again, err := server.restart(at, from)
	if err != nil {
		return false, err
	}
	defer again.close()
	if err := again.send(2 * overlap); err != nil { // the first half is repeated
		return false, err
	}
	for until := time.Now().Add(receiveLimit); time.Now().Before(until); {
		err := client.receive(overlap)
		if err == nil || !errors.Is(err, unix.EAGAIN) {
			return false, err
		}
		if now, err := counters.read(droppedAsOld); err != nil || now > before {
			return err == nil, err
		}
	}
	return false, errors.New("the kernel neither delivered a segment nor counted it as dropped")
}

const (
	// overlap is the number of bytes that a segment repeats. Twice as many fit into the smallest segment size that TCP
	// assumes.
	overlap = 200
	// droppedAsOld is the name of the counter of segments that the kernel dropped because, as it believed, it had their
	// data.
	droppedAsOld = "DuplicateData"
	// Values of TCP_REPAIR_QUEUE (linux/tcp.h).
	receiveQueue, sendQueue = 1, 2
	// receiveLimit is the longest time that the test waits for data. It normally takes milliseconds.
	receiveLimit = 5 * time.Second
)

type end struct{ fd int }

// newEnd opens a socket. Its reads return EAGAIN after 20 ms without data.
func newEnd(protocol int) (end, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return end{}, err
	}
	moment := unix.NsecToTimeval((20 * time.Millisecond).Nanoseconds())
	return end{fd}, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &moment)
}

func loopback(port uint16) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: netip.MustParseAddr("127.0.0.1").As4(), Port: int(port)}
}

// close may be called again.
func (s *end) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	s.fd = -1
}

func (s end) send(n int) error {
	sent, err := unix.Write(s.fd, make([]byte, n))
	if err == nil && sent < n {
		err = unix.ENOBUFS
	}
	return err
}

// receive reads n bytes, which must arrive in one piece before the read times out.
func (s end) receive(n int) error {
	got, err := unix.Read(s.fd, make([]byte, n))
	if err == nil && got < n {
		err = net.ErrClosed
	}
	return err
}

// restart closes an end of a connection and replaces it by a new one, which sends the last bytes again. The other end
// does not notice the change.
func (s *end) restart(local, remote unix.Sockaddr) (again end, err error) {
	if err := s.waitUntilAcknowledged(); err != nil {
		return again, err
	}
	if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
		return again, err
	}
	sent, err := s.queue(sendQueue)
	if err != nil {
		return again, err
	}
	received, err := s.queue(receiveQueue)
	if err != nil {
		return again, err
	}
	if again, err = newEnd(unix.IPPROTO_TCP); err != nil {
		return again, err
	}
	defer func() {
		if err != nil {
			again.close()
		}
	}()
	if err := errors.Join(
		unix.SetsockoptInt(again.fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1),
		again.setQueue(sendQueue, sent-overlap),
		again.setQueue(receiveQueue, received),
	); err != nil {
		return again, err
	}
	s.close() // sends no packet in this state, and frees the addresses
	return again, errors.Join(
		unix.Bind(again.fd, local), unix.Connect(again.fd, remote),
		again.setWindow(received), unix.SetsockoptInt(again.fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0),
	)
}

func (s end) waitUntilAcknowledged() error {
	for until := time.Now().Add(receiveLimit); time.Now().Before(until); time.Sleep(time.Millisecond) {
		waiting, err := unix.IoctlGetInt(s.fd, unix.SIOCOUTQ)
		if err != nil || waiting == 0 {
			return err
		}
	}
	return errors.New("the kernel did not acknowledge data over the loopback interface")
}

// queue returns the next sequence number of a direction.
func (s end) queue(which int) (uint32, error) {
	if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, which); err != nil {
		return 0, err
	}
	n, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	return uint32(n), err
}

func (s end) setQueue(which int, next uint32) error {
	return errors.Join(
		unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, which),
		unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ, int(int32(next))),
	)
}

// setWindow sets both directions' windows (struct tcp_repair_window).
func (s end) setWindow(received uint32) error {
	const window = 1 << 16
	var w []byte
	for _, field := range []uint32{
		received, // snd_wl1
		window,   // snd_wnd
		window,   // max_window
		window,   // rcv_wnd
		received, // rcv_wup
	} {
		w = binary.NativeEndian.AppendUint32(w, field)
	}
	return unix.SetsockoptString(s.fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW, string(w))
}
