package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/strangers"
)

const (
	// Limits of strangers at the embedded server. A member proves its key within a fraction of a second, and is not a
	// stranger any more then.
	maxStrangers     = 4096
	maxPerSource     = 256 // many members may share an address, and reconnect at the same time
	handshakeWithin  = 5 * time.Second
	acceptAgain      = 50 * time.Millisecond // the wait if there are no file descriptors left
	carrySize        = 4 << 10
	probeIdleAfter   = time.Minute // so that the loss of a host is noticed within two minutes
	probeEvery       = 15 * time.Second
	probesUnanswered = 4
)

// entrance is the embedded server's listener. NATS has one limit for all connections, including unauthenticated ones,
// so strangers could keep members out. Therefore the entrance does TLS, and passes only members' connections to NATS.
type entrance struct {
	listener *strangers.Listener
	tls      *tls.Config
	identity *collective.Identity
	doors    *doors
	inside   func() (net.Conn, error) // returns a new connection to NATS
	log      *slog.Logger
	running  sync.WaitGroup
}

// listenTCP listens, and makes the kernel notice hosts that have disappeared.
func listenTCP(address string) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("the bus's address %q: %w", address, err)
	}
	l, err := (&net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: probeIdleAfter, Interval: probeEvery, Count: probesUnanswered,
	}}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("start the bus's server on %s: %w", address, err)
	}
	return l, nil
}

func newEntrance(l net.Listener, id *collective.Identity, seen *strangers.Seen, inside func() (net.Conn, error), log *slog.Logger) *entrance {
	limits := strangers.Limits{Total: maxStrangers, PerSource: maxPerSource, Patience: handshakeWithin}
	return &entrance{
		listener: strangers.NewListener(l, limits, seen), tls: serverTLS(id), identity: id, doors: newDoors(), inside: inside, log: log,
	}
}

// serverTLS returns the TLS configuration. It uses the identity's current files and refuses revoked members.
func serverTLS(id *collective.Identity) *tls.Config {
	base := id.ServerTLS(alpn)
	config := base.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		now, err := base.GetConfigForClient(hello)
		if err != nil {
			return nil, err
		}
		now.VerifyConnection = func(cs tls.ConnectionState) error {
			_, err := id.Peer(cs)
			return err
		}
		return now, nil
	}
	return config
}

// run accepts connections until the listener is closed.
func (e *entrance) run() {
	for {
		conn, err := e.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			e.log.Warn("bus: cannot take a connection, trying again", "err", err)
			time.Sleep(acceptAgain)
		default:
			e.running.Go(func() { e.meet(conn.(*strangers.Conn)) })
		}
	}
}

// meet authenticates a client, and serves it until its connection ends.
func (e *entrance) meet(conn *strangers.Conn) {
	defer conn.Close()
	secure := tls.Server(conn, e.tls)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeWithin)
	err := secure.HandshakeContext(ctx)
	cancel()
	if err != nil {
		e.log.Debug("bus: a stranger did not get in", "from", conn.RemoteAddr(), "err", err)
		return
	}
	member, err := e.identity.Peer(secure.ConnectionState())
	if err != nil {
		return // the certificate was revoked a moment ago
	}
	conn.Admit(member.Name)
	e.doors.enter(member.Name, conn)
	defer e.doors.leave(member.Name, conn)
	inside, err := e.inside()
	if err != nil {
		e.log.Warn("bus: the server takes nobody", "err", err)
		return
	}
	carry(secure, inside)
}

// carry copies bytes between a member and NATS until one of them closes.
func carry(member, inside net.Conn) {
	var back sync.WaitGroup
	back.Go(func() { carryOne(patient{member}, inside) })
	carryOne(inside, member)
	back.Wait()
}

func carryOne(to io.WriteCloser, from io.Reader) {
	// Hide WriterTo and ReaderFrom of both ends. Their buffers would take eight times as much memory for each member.
	io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, carrySize)) //nolint:errcheck // either end may go at any time
	to.Close()                                                                                 // also ends the other direction, after its remaining data
}

// patient bounds the time for which a write may wait for a slow reader.
type patient struct{ net.Conn }

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(writeDeadline)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// close ends all connections.
func (e *entrance) close() {
	e.listener.Close()
	e.doors.cutAll()
	e.running.Wait()
}
