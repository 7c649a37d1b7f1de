package mptcp

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// diagBuffer is the size in bytes of the buffer for one datagram of a dump. The kernel fills up to 32 KiB.
const diagBuffer = 64 << 10

// diagTimeout is the longest time to wait for an answer.
const diagTimeout = 5 * time.Second

// diagStates are the states to list: all except LISTEN and those of incomplete sockets (TIME_WAIT,
// NEW_SYN_RECV).
const diagStates = 1<<StateEstablished | 1<<StateSynSent | 1<<StateSynRecv | 1<<StateFinWait1 |
	1<<StateFinWait2 | 1<<StateClose | 1<<StateCloseWait | 1<<StateLastAck | 1<<StateClosing

// diagSocket sends requests to the kernel's sock_diag. It is not safe for concurrent use.
type diagSocket struct {
	conn    *netlink.Conn
	answers *receiver
}

func openDiag() (*diagSocket, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	answers, err := newReceiver(conn, diagBuffer)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	return &diagSocket{conn: conn, answers: answers}, nil
}

func (d *diagSocket) close() error { return d.conn.Close() }

// Subflows implements Kernel.
func (n *Namespace) Subflows(yield func(*Subflow) bool) error {
	n.diagMu.Lock()
	defer n.diagMu.Unlock()
	return n.diag.dumpSubflows(yield)
}

// Subflow implements Kernel.
func (n *Namespace) Subflow(local, remote netip.AddrPort) (Subflow, error) {
	n.diagMu.Lock()
	defer n.diagMu.Unlock()
	return n.diag.subflow(local, remote)
}

// Offered reports whether a connection that fell back to TCP began with an offer of MPTCP, so that its peer is the one
// that speaks TCP. For some time after an outage, the kernel offers MPTCP to nobody. The connection is one of the calling
// thread's network namespace. If there is none, the error is ErrNoSubflow.
func Offered(local, remote netip.AddrPort) (bool, error) {
	diag, err := openDiag()
	if err != nil {
		return false, err
	}
	defer diag.close()
	s, err := diag.subflow(local, remote)
	return s.Token != 0, err // the kernel makes the token together with the offer
}

func (d *diagSocket) subflow(local, remote netip.AddrPort) (Subflow, error) {
	local, remote = unmap(local), unmap(remote)
	req := diagRequest{family: familyOf(local.Addr()), protocol: unix.IPPROTO_TCP, local: local, remote: remote}
	// The direct lookup does not find sockets that are bound to an interface. The list, filtered by ports, does.
	for _, how := range [...]netlink.HeaderFlags{0, netlink.Dump} {
		s, ok, err := d.find(req, how)
		if err != nil {
			return Subflow{}, fmt.Errorf("look up subflow from %v to %v: %w", local, remote, err)
		}
		if ok {
			return s, nil
		}
	}
	return Subflow{}, fmt.Errorf("look up subflow from %v to %v: %w", local, remote, ErrNoSubflow)
}

// Owner returns the user who made the TCP socket or subflow with these ends, in the calling thread's network namespace. It
// does not find sockets that are bound to an interface. If there is none, the error is ErrNoSubflow.
func Owner(local, remote netip.AddrPort) (uid uint32, err error) {
	diag, err := openDiag()
	if err != nil {
		return 0, err
	}
	defer diag.close()
	local, remote = unmap(local), unmap(remote)
	found := false
	err = diag.ask(diagRequest{family: familyOf(local.Addr()), protocol: unix.IPPROTO_TCP, local: local, remote: remote}, 0, func(msg []byte) (bool, error) {
		s, _, err := decodeSocket(msg)
		if found = err == nil && s.local == local && s.remote == remote; found { // otherwise it is a listener
			uid = s.uid
		}
		return false, err
	})
	if errors.Is(err, syscall.ENOENT) || err == nil && !found {
		err = ErrNoSubflow
	}
	if err != nil {
		return 0, fmt.Errorf("look up the owner of the socket from %v to %v: %w", local, remote, err)
	}
	return uid, nil
}

// Progress implements Kernel.
func (n *Namespace) Progress(token uint32) (Progress, error) {
	c, err := n.connection(token)
	return c.progress, err
}

// Open implements Kernel.
func (n *Namespace) Open(token uint32) (bool, error) {
	c, err := n.connection(token)
	return c.State == StateEstablished, err
}

// connection looks up one connection, without its subflows.
func (n *Namespace) connection(token uint32) (found Connection, err error) {
	n.diagMu.Lock()
	defer n.diagMu.Unlock()

	ok := false
	req := diagRequest{family: unix.AF_INET, protocol: protocolMPTCP, token: token}
	err = n.diag.ask(req, 0, func(msg []byte) (bool, error) {
		var c Connection
		is, err := decodeConnection(msg, &c)
		if is && c.Token == token {
			found, ok = c, true
		}
		return false, err
	})
	if errors.Is(err, syscall.ENOENT) || err == nil && !ok {
		err = ErrNoConnection
	}
	if err != nil {
		return Connection{}, fmt.Errorf("look up connection %08x: %w", token, err)
	}
	return found, nil
}

func (d *diagSocket) find(req diagRequest, how netlink.HeaderFlags) (found Subflow, ok bool, err error) {
	err = d.ask(req, how, func(msg []byte) (bool, error) {
		var s Subflow
		isSubflow, err := decodeSubflow(msg, &s)
		// If no connection matches, the kernel answers with a listener.
		if isSubflow && s.Local == req.local && s.Remote == req.remote {
			found, ok = s, true
		}
		return !ok, err
	})
	if errors.Is(err, syscall.ENOENT) {
		return Subflow{}, false, nil
	}
	return found, ok, err
}

func (d *diagSocket) dumpSubflows(yield func(*Subflow) bool) error {
	more := true
	var s Subflow
	for _, family := range [...]uint8{unix.AF_INET, unix.AF_INET6} {
		err := d.ask(diagRequest{family: family, protocol: unix.IPPROTO_TCP}, netlink.Dump, func(msg []byte) (bool, error) {
			ok, err := decodeSubflow(msg, &s)
			if ok && more {
				more = yield(&s)
			}
			return more, err
		})
		if err != nil {
			return fmt.Errorf("list subflows: %w", err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

func (d *diagSocket) dumpConnections(protocol uint16, yield func(*Connection) bool) error {
	var c Connection
	for _, family := range [...]uint8{unix.AF_INET, unix.AF_INET6} {
		err := d.ask(diagRequest{family: family, protocol: protocol}, netlink.Dump, func(msg []byte) (bool, error) {
			ok, err := decodeConnection(msg, &c)
			return !ok || yield(&c), err
		})
		if errors.Is(err, syscall.ENOENT) {
			return unsupported(ConnectionDiag)
		}
		if err != nil {
			return fmt.Errorf("list MPTCP connections: %w", err)
		}
	}
	return nil
}

// ask sends one request and calls yield for each answer until yield returns false or an error. It reads and drops the
// remaining answers, so that the socket is ready for the next request.
func (d *diagSocket) ask(req diagRequest, flags netlink.HeaderFlags, yield func(msg []byte) (bool, error)) error {
	if err := d.conn.SetReadDeadline(time.Now().Add(diagTimeout)); err != nil {
		return err
	}
	sent, err := d.conn.Send(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | flags},
		Data:   req.encode(),
	})
	if err != nil {
		return err
	}
	dump := flags&netlink.Dump != 0
	more := true
	var failed error
	for {
		b, err := d.answers.next()
		if err != nil {
			return err
		}
		for len(b) > 0 {
			m, rest, err := nextMessage(b)
			if err != nil {
				return err
			}
			b = rest
			if m.seq != sent.Header.Sequence {
				continue // left over from an aborted request
			}
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if code := int32(u32(m.payload)); code < 0 {
					return syscall.Errno(-code)
				}
				return failed
			case unix.SOCK_DIAG_BY_FAMILY:
				if more {
					more, failed = yield(m.payload)
					more = more && failed == nil
				}
				if !dump {
					return failed
				}
			}
		}
	}
}
