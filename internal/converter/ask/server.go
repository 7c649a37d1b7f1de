package ask

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
)

// Limits of a server. The two supervisors of a `dcol run` keep up to four idle connections.
const (
	maxClients        = 2048
	maxClientsOfUser  = 512
	idleTimeout       = time.Minute
	replyTimeout      = 200 * time.Millisecond
	pauseAfterFailure = 50 * time.Millisecond
)

// Listen listens at the relay's socket, which all users may use. It replaces the socket of a relay that has ended or
// hands over. The socket's file stays when the listener is closed.
func Listen(socket string) (*net.UnixListener, error) {
	// The socket is bound under another name first, so that at each moment one that answers has the path.
	fresh := fmt.Sprintf("%s.%d", socket, os.Getpid())
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: fresh, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o666), os.Rename(fresh, socket)); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	return l, nil
}

// Serve answers clients until ctx ends, and closes the listener. It accepts a limited number of connections, and closes
// those of clients that send malformed packets or do not read their answers.
func Serve(ctx context.Context, l *net.UnixListener, h Handler) error {
	namespace, err := namespaceOf(l)
	if err != nil {
		l.Close()
		return fmt.Errorf("identify the relay's network namespace: %w", err)
	}
	s := &server{handler: h, namespace: namespace, conns: map[*net.UnixConn]uint32{}, ofUser: map[uint32]int{}}
	stop := context.AfterFunc(ctx, func() {
		l.Close()
		s.closeAll()
	})
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			s.closeAll()
			return err
		case err != nil:
			time.Sleep(pauseAfterFailure) // no descriptors, or no memory
			continue
		}
		process, ok := s.admit(conn)
		if !ok {
			conn.Close()
			continue
		}
		running.Go(func() {
			defer s.leave(conn)
			s.converse(conn, process)
		})
	}
}

// server is the state of Serve.
type server struct {
	handler   Handler
	namespace uint64

	mu     sync.Mutex
	closed bool
	conns  map[*net.UnixConn]uint32 // by connection: the user
	ofUser map[uint32]int
}

// admit counts a connection, unless there are too many.
func (s *server) admit(conn *net.UnixConn) (Process, bool) {
	peer, err := sockinfo.Peer(conn)
	if err != nil {
		return Process{}, false
	}
	return Process{PID: peer.Pid, UID: peer.Uid}, s.admitAs(conn, peer.Uid)
}

func (s *server) admitAs(conn *net.UnixConn, user uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Other users must not keep root's programs out, and root's programs have no limit for one user, so that its
	// services do not keep each other out.
	if s.closed || len(s.conns) >= maxClients || user != 0 && s.ofUser[user] >= maxClientsOfUser {
		return false
	}
	s.conns[conn] = user
	s.ofUser[user]++
	return true
}

func (s *server) leave(conn *net.UnixConn) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := s.conns[conn]
	delete(s.conns, conn)
	if s.ofUser[uid]--; s.ofUser[uid] == 0 {
		delete(s.ofUser, uid)
	}
}

func (s *server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
}

// converse answers one client until it leaves.
func (s *server) converse(conn *net.UnixConn, process Process) {
	packet := make([]byte, maxPacket)
	for {
		if conn.SetReadDeadline(time.Now().Add(idleTimeout)) != nil {
			return
		}
		n, err := conn.Read(packet)
		if err != nil || n == 0 {
			return
		}
		r, err := decodeRequest(packet[:n])
		if err != nil {
			return
		}
		reply := s.reply(process, r)
		if reply == nil {
			continue
		}
		if conn.SetWriteDeadline(time.Now().Add(replyTimeout)) != nil {
			return
		}
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}

// reply returns the reply to a request, or nil if it has none.
func (s *server) reply(p Process, r request) []byte {
	switch r.kind {
	case kindQuestion:
		answer := s.handler.Ask(p, r.server)
		if answer.Convert != nil {
			c := *answer.Convert
			c.Namespace = s.namespace
			answer.Convert = &c
		}
		return encodeAnswer(answer)
	case kindExpect:
		return encodeYesOrNo(kindExpected, s.handler.Expect(p, r.local, r.server))
	case kindProgram:
		return encodeYesOrNo(kindExcluded, s.handler.Excludes(p, r.program))
	case kindLearned:
		s.handler.Learned(p, r.server, r.mptcp)
	case kindSuspect:
		s.handler.Suspect(p, r.server)
	case kindUnserved:
		s.handler.Unserved(p, r.converter, r.server)
	case kindRefused:
		s.handler.Refused(p, r.converter, r.server)
	case kindCarried:
		s.handler.Carried(p, r.local, r.converter, r.server, r.handshake, r.answer)
	case kindFastOpened:
		s.handler.FastOpened(p, r.server, r.how)
	}
	return nil
}

func namespaceOf(l *net.UnixListener) (cookie uint64, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0, err
	}
	var of error
	err = raw.Control(func(fd uintptr) {
		cookie, of = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	return cookie, errors.Join(err, of)
}
