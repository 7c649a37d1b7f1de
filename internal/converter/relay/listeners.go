package relay

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// listener is a listening socket. It is no os.File, whose method Fd makes a socket blocking, for all who have it.
type listener struct{ fd int }

func (l *listener) close() { _ = unix.Close(l.fd) }

// handed is the name of a listening socket that is handed over.
func handed(part, address string) string { return part + " at " + address }

// listen returns the listening socket of a part: one that the relay before has handed over, or a new one, for MPTCP and
// TCP.
func (r *relay) listen(part, address string) (*listener, error) {
	name := handed(part, address)
	if l := r.inherited[name]; l != nil {
		delete(r.inherited, name)
		return l, nil
	}
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	own, failed := -1, error(nil)
	if err := raw.Control(func(fd uintptr) { own, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if failed != nil {
		return nil, fmt.Errorf("listen: %w", failed)
	}
	return &listener{own}, nil
}
