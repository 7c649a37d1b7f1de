package mptcp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// receiver reads datagrams from a netlink socket into one buffer. Unlike the netlink library, it allocates nothing for
// a datagram.
type receiver struct {
	raw  syscall.RawConn
	buf  []byte
	n    int
	err  error
	read func(fd uintptr) bool // made once, because each closure is an allocation
	// drained, if set, is called once, when the socket is next found empty.
	drained func()
}

func newReceiver(conn syscall.Conn, size int) (*receiver, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &receiver{raw: raw, buf: make([]byte, size)}
	r.read = func(fd uintptr) bool {
		for {
			r.n, r.err = unix.Read(int(fd), r.buf)
			if r.err == unix.EINTR {
				continue
			}
			if r.err == unix.EAGAIN && r.drained != nil {
				r.drained()
				r.drained = nil
			}
			return r.err != unix.EAGAIN
		}
	}
	return r, nil
}

// next returns the next datagram. It waits until the read deadline of the socket. The result is valid until the next
// call.
func (r *receiver) next() ([]byte, error) {
	if err := r.raw.Read(r.read); err != nil {
		return nil, err
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.buf[:r.n], nil
}
