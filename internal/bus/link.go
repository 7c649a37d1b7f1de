package bus

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/detour-collective/dcol/internal/collective"
)

// Endpoint is a server of the bus: the name that its certificate must have, and its host and port.
type Endpoint struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// Config configures a connection to the bus.
type Config struct {
	Identity *collective.Identity
	// JWT returns the user JWT, for example from Authority.MemberJWT. It is called for each connection.
	JWT func() (string, error)
	// Servers are tried in random order. Further servers that these announce are ignored.
	Servers []Endpoint
	// Changed is called when the connection comes up, ends, or cannot be restored. It may be nil and must not block for
	// long. After a reconnect, messages that were sent in the meantime are missing, and must be requested.
	Changed func(State)
	Log     *slog.Logger
}

// State describes a connection, for people and health checks.
type State struct {
	Connected bool
	Server    string    // name of the server, if connected
	Since     time.Time // when the connection came up or ended
	Heard     time.Time // when something was last received; zero: nothing yet
	Err       error     // why there is no connection
	Connects  uint64    // connections since the start
	Dropped   uint64    // messages that arrived faster than they were handled
}

const (
	dialTimeout    = 5 * time.Second
	pingInterval   = 10 * time.Second // a connection ends if a ping is not answered before the next is due
	firstDelay     = 2 * time.Second
	longestDelay   = time.Minute
	receiveBacklog = 256 // messages of up to MaxPayload that may wait to be handled
)

// Errors of requests and messages, for errors.Is.
var (
	ErrNotConnected  = errors.New("not connected to the bus")
	ErrNoCoordinator = errors.New("no coordinator is connected to the bus")
	// ErrNotLetIn is returned if the JWT or the certificate has expired, or the member was expelled.
	ErrNotLetIn = errors.New("the bus does not let this member in")
	ErrTooLarge = fmt.Errorf("larger than %d bytes", MaxPayload)
)

// link is a connection that is restored whenever it ends.
type link struct {
	config Config
	name   string // the member's
	nats   *nats.Conn
	heard  atomic.Pointer[time.Time]

	mu     sync.Mutex
	state  State
	parted error // the server's last error before it ended the connection
}

// connect returns after the first attempt, which may take dialTimeout for each server. Further attempts follow in the
// background. It returns an error only if the configuration is wrong.
func connect(c Config, role string) (*link, error) {
	if len(c.Servers) == 0 {
		return nil, errors.New("connect to the bus: no server is configured")
	}
	l := &link{config: c, name: c.Identity.Name(), state: State{Since: time.Now()}}
	var urls []string
	names := map[string]string{}
	for _, s := range c.Servers {
		if _, _, err := net.SplitHostPort(s.Address); err != nil {
			return nil, fmt.Errorf("connect to the bus: the address of %s: %w", s.Name, err)
		}
		if err := collective.CheckName(s.Name); err != nil {
			return nil, fmt.Errorf("connect to the bus: the server %s: %w", s.Address, err)
		}
		urls = append(urls, "nats://"+s.Address)
		names[s.Address] = s.Name
	}
	d := &dialer{id: c.Identity, names: names, jwt: c.JWT, refused: l.refused, heard: func() { now := time.Now(); l.heard.Store(&now) }}
	nc, err := nats.Connect(strings.Join(urls, ","),
		nats.Name(l.name+" "+role),
		nats.SetCustomDialer(d),
		nats.SkipHostLookup(), // the dialer looks names up, so that it knows which server an address belongs to
		nats.IgnoreDiscoveredServers(),
		nats.UserJWT(d.lastJWT, l.signNonce),
		nats.CustomInboxPrefix(inbox(l.name)),
		nats.Timeout(dialTimeout),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(1),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ReconnectBufSize(-1), // return an error instead of buffering
		nats.ConnectHandler(l.connected), nats.ReconnectHandler(l.connected),
		nats.DisconnectErrHandler(l.disconnected), nats.ReconnectErrHandler(l.notConnected),
		nats.ErrorHandler(l.complained),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	l.nats = nc
	return l, nil
}

// reconnectDelay returns the time to wait after all servers were tried n times. The first wait is up to two seconds, at
// random, so that members do not all reconnect at once. It doubles up to a minute.
func reconnectDelay(n int) time.Duration {
	if n <= 1 {
		return rand.N(firstDelay)
	}
	limit := min(firstDelay<<min(n-1, 10), longestDelay)
	return limit/2 + rand.N(limit/2)
}

// signNonce signs the server's nonce with the JWT's key. If the text cannot be a nonce, it signs nothing, and the server
// refuses the connection.
func (l *link) signNonce(nonce []byte) ([]byte, error) {
	if !isNonce(nonce) {
		l.config.Log.Warn("bus: a server asked for a signature over what is no nonce", "wanted", string(nonce))
		return nil, nil
	}
	return l.config.Identity.Sign(nonce), nil
}

// isNonce reports whether b looks like a nonce. The server chooses it, and must not obtain a signature of another text
// that way. All other texts that members sign contain a space or a newline.
func isNonce(nonce []byte) bool {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return len(nonce) > 0 && len(nonce) <= 64 && strings.Trim(string(nonce), alphabet) == ""
}

// dialer does TLS, because nats.go would keep using the certificates of the first connection. It also gets the JWT,
// because nats.go gives up for good if there is none for the first connection.
type dialer struct {
	id      *collective.Identity
	names   map[string]string // by address
	jwt     func() (string, error)
	refused func(error) // called when a server refuses TLS with us; may be nil
	heard   func()      // called when data arrives; may be nil

	mu   sync.Mutex
	last string // JWT
}

// SkipTLSHandshake reports to nats.go that Dial does TLS.
func (*dialer) SkipTLSHandshake() bool { return true }

// Dial connects to a server and verifies its name.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	name := d.names[address]
	token, err := d.jwt()
	if err != nil {
		return nil, fmt.Errorf("get the JWT for the bus: %w", err)
	}
	d.mu.Lock()
	d.last = token
	d.mu.Unlock()
	plain, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", name, err)
	}
	conn := tls.Client(plain, d.id.ClientTLS(alpn, name))
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, fmt.Errorf("meet %s at %s: %w", name, address, err)
	}
	return &listening{conn, d.refused, d.heard}, nil
}

// listening notices TLS alerts. With TLS 1.3, a server verifies our certificate after our handshake has ended, and
// nats.go does not report its alert.
type listening struct {
	*tls.Conn
	refused func(error)
	heard   func()
}

func (c *listening) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.heard != nil {
		c.heard()
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" && c.refused != nil {
		go c.refused(fmt.Errorf("%w: %w", ErrNotLetIn, err)) // in a goroutine, because nats.go holds its lock here
	}
	return n, err
}

// lastJWT returns the JWT for the connection just dialled.
func (d *dialer) lastJWT() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last, nil
}

func (l *link) connected(nc *nats.Conn) {
	address := strings.TrimPrefix(nc.ConnectedUrl(), "nats://")
	l.change(func(s *State) {
		var name string
		for _, e := range l.config.Servers {
			if e.Address == address {
				name = e.Name
			}
		}
		s.Connected, s.Server, s.Since, s.Err = true, name, time.Now(), nil
		s.Connects++
		l.config.Log.Info("bus: connected", "server", name, "address", address)
	})
}

func (l *link) disconnected(nc *nats.Conn, cause error) {
	if nc.IsClosed() {
		return // we closed it
	}
	l.change(func(s *State) {
		err := cmp.Or(l.parted, cause, errors.New("the connection was closed"))
		l.parted = nil
		s.Connected, s.Server, s.Since, s.Err = false, "", time.Now(), err
		l.config.Log.Warn("bus: connection lost", "err", err)
	})
}

func (l *link) notConnected(_ *nats.Conn, err error) {
	l.change(func(s *State) {
		s.Err = sayWhy(err)
		l.config.Log.Info("bus: cannot connect, trying again", "err", err)
	})
}

// complained handles errors that no call returns, such as a refused subject or a dropped message.
func (l *link) complained(_ *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.mu.Lock()
	switch {
	case errors.Is(err, nats.ErrSlowConsumer):
		l.state.Dropped++ // NATS reports only the first of several in a row
	case isRefusal(err):
		defer l.refused(sayWhy(err))
	}
	l.mu.Unlock()
	l.config.Log.Warn("bus: the connection complains", "subject", subject, "err", err)
}

// refused records that a server has refused or ended the connection.
func (l *link) refused(err error) {
	l.mu.Lock()
	connected := l.state.Connected
	if connected {
		l.parted = err // disconnected is called next
	}
	l.mu.Unlock()
	if !connected {
		l.change(func(s *State) { s.Err = err })
	}
}

func (l *link) change(f func(*State)) {
	l.mu.Lock()
	f(&l.state)
	s := l.state
	l.mu.Unlock()
	if l.config.Changed != nil {
		l.config.Changed(s)
	}
}

// State returns the connection's state.
func (l *link) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	if heard := l.heard.Load(); heard != nil {
		s.Heard = *heard
	}
	return s
}

// Reconnect reconnects with the current certificate and JWT. Call it after a renewal, before the old ones expire.
func (l *link) Reconnect() error {
	if err := l.nats.ForceReconnect(); err != nil {
		return fmt.Errorf("connect to the bus anew: %w", err)
	}
	return nil
}

// Close closes the connection.
func (l *link) Close() { l.nats.Close() }

// publish sends data of at most MaxPayload bytes to a subject.
func (l *link) publish(subject string, data []byte) error {
	if len(data) > MaxPayload {
		return fmt.Errorf("send %s: %d bytes are %w", subject, len(data), ErrTooLarge)
	}
	if err := l.nats.Publish(subject, data); err != nil {
		return fmt.Errorf("send %s: %w", subject, sayWhy(err))
	}
	return nil
}

// sayWhy translates those errors of NATS that callers distinguish.
func sayWhy(err error) error {
	switch {
	case errors.Is(err, nats.ErrReconnectBufExceeded): // of no bytes: its words would mislead
		return ErrNotConnected
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrConnectionReconnecting):
		return fmt.Errorf("%w: %w", ErrNotConnected, err)
	case errors.Is(err, nats.ErrNoResponders):
		return ErrNoCoordinator
	case isRefusal(err):
		return fmt.Errorf("%w: %w", ErrNotLetIn, err)
	}
	return err
}

// isRefusal reports whether a server has refused or ended the connection for good.
func isRefusal(err error) bool {
	for _, refusal := range []error{nats.ErrAuthorization, nats.ErrAuthRevoked, nats.ErrAuthExpired, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}
