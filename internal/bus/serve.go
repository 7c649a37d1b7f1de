package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/strangers"
)

// Limits of one connection at a server, embedded or external.
const (
	// maxPending is the maximum number of bytes that wait for a slow client. JetStream needs more than 32 MiB, which
	// its flow control allows to be under way to a coordinator.
	maxPending    = 64 << 20
	writeDeadline = 5 * time.Second

	startTimeout = 30 * time.Second
)

// alpn distinguishes the bus from members' sessions. An external nats-server does not check it.
const alpn = "dcol-bus"

// ServerConfig configures the embedded server.
type ServerConfig struct {
	Identity  *collective.Identity
	Authority *Authority
	Listen    string // host:port; port 0 takes any
	// Store is a directory only for this server. JetStream keeps records and trust there.
	Store string
	// MaxConnections bounds the connected members and coordinators.
	MaxConnections int
	Seen           *strangers.Seen // where members were seen, also by other listeners
	Log            *slog.Logger
}

// Server is the embedded NATS server.
type Server struct {
	nats     *server.Server
	accounts *server.MemAccResolver
	address  string
	name     string
	damage   []string
	failed   chan string
	entrance *entrance
}

// Serve starts the embedded server, and returns when it accepts connections. It moves damaged parts of its store away
// (see Damage). A coordinator then restores the contents from its own copy and from members.
func Serve(c ServerConfig) (*Server, error) {
	store, damage, err := openStore(c.Store)
	if err != nil {
		return nil, err
	}
	s, err := start(c)
	if errors.Is(err, errStore) {
		restore, aside, moveErr := store.putAside()
		if moveErr != nil {
			return nil, errors.Join(err, moveErr)
		}
		damage = append(damage, fmt.Sprintf("%v: it lies in %s now", err, aside))
		if s, err = start(c); err != nil {
			return nil, errors.Join(err, restore()) // the store was not the reason
		}
	}
	if err != nil {
		return nil, err
	}
	lost, err := store.check(s.nats, publicKey(c.Authority.account))
	if err == nil {
		err = store.ready()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.damage = slices.Concat(damage, lost)
	for _, d := range s.damage {
		c.Log.Error("bus: the store was damaged", "damage", d)
	}
	c.Log.Info("bus: serving", "address", s.address)
	return s, nil
}

// start makes one attempt to start the server. Clients that connect in the meantime wait.
func start(c ServerConfig) (*Server, error) {
	s := &Server{name: c.Identity.Name(), accounts: &server.MemAccResolver{}, failed: make(chan string, 8)}
	options, err := s.options(c)
	if err != nil {
		return nil, err
	}
	if s.nats, err = server.NewServer(options); err != nil {
		return nil, fmt.Errorf("make the bus's server: %w", err)
	}
	listener, err := listenTCP(c.Listen)
	if err != nil {
		return nil, err
	}
	s.entrance = newEntrance(listener, c.Identity, c.Seen, s.nats.InProcessConn, c.Log)
	s.nats.SetLoggerV2(&serverLog{log: c.Log, failed: s.failed}, c.Log.Enabled(context.Background(), slog.LevelDebug), false, false)
	s.nats.Start()
	for deadline := time.Now().Add(startTimeout); !s.nats.ReadyForConnections(50 * time.Millisecond); {
		select {
		case why := <-s.failed:
			stored := s.nats.JetStreamEnabled()
			s.Close()
			if !stored {
				return nil, fmt.Errorf("start the bus's server on its store %s: %w: %s", c.Store, errStore, why)
			}
			return nil, fmt.Errorf("start the bus's server: %s", why)
		default:
		}
		if time.Now().After(deadline) {
			s.Close()
			return nil, fmt.Errorf("start the bus's server: not ready after %v", startTimeout)
		}
	}
	s.address = reachable(listener.Addr())
	s.entrance.running.Go(s.entrance.run)
	return s, nil
}

func (s *Server) options(c ServerConfig) (*server.Options, error) {
	accountJWT, err := c.Authority.AccountJWT()
	if err != nil {
		return nil, err
	}
	systemJWT, err := c.Authority.systemJWT()
	if err != nil {
		return nil, err
	}
	for id, text := range map[string]string{publicKey(c.Authority.account): accountJWT, publicKey(c.Authority.system): systemJWT} {
		if err := s.accounts.Store(id, text); err != nil {
			return nil, fmt.Errorf("keep an account of the bus: %w", err)
		}
	}
	return &server.Options{
		ServerName: s.name,
		DontListen: true, // the entrance listens
		NoSigs:     true, // the agent handles signals

		AuthTimeout:      handshakeWithin.Seconds(),
		TrustedOperators: []*jwt.OperatorClaims{c.Authority.operatorClaims()},
		SystemAccount:    publicKey(c.Authority.system),
		AccountResolver:  s.accounts,

		MaxConn: c.MaxConnections, MaxPending: maxPending, WriteDeadline: writeDeadline,
		NoFastProducerStall: true, // slow clients are disconnected, so that nobody waits for them
		MaxClosedClients:    100,  // only for NATS's own monitoring, which is not enabled

		JetStream: true, StoreDir: c.Store, JetStreamMaxStore: maxStore, DisableJetStreamBanner: true,
		// Acknowledged data survives a power cut. Changes are rare, so an fsync for each is acceptable.
		SyncAlways: true,
	}, nil
}

// reachable returns the address at which a process on this host reaches a listener.
func reachable(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
}

// Endpoint returns this server's Endpoint for a coordinator in this process.
func (s *Server) Endpoint() Endpoint { return Endpoint{Name: s.name, Address: s.address} }

// Damage lists the parts of the store that were damaged at the start, and the folders to which they were moved.
func (s *Server) Damage() []string { return s.damage }

// Failed receives a value if the server cannot continue. The caller should then close it.
func (s *Server) Failed() <-chan string { return s.failed }

// Cut closes a member's connections at once. Whether the member can reconnect depends on its certificate and
// SetAccount.
func (s *Server) Cut(member string) { s.entrance.doors.cut(member) }

// Connected reports whether a member is connected. A host that has disappeared counts as connected for up to two
// minutes.
func (s *Server) Connected(member string) bool { return s.entrance.doors.has(member) }

// Addresses returns the addresses from which a member is connected.
func (s *Server) Addresses(member string) []netip.Addr { return s.entrance.doors.addresses(member) }

// SetAccount installs the JWT that Authority.Revoke has returned. It cuts the connections of revoked members before it
// returns. For that, NATS reads the JWT of every connection twice, which takes about 0.2 ms of processor time each.
func (s *Server) SetAccount(_ context.Context, accountJWT string) error {
	claims, err := jwt.DecodeAccountClaims(accountJWT)
	if err != nil {
		return fmt.Errorf("tell the bus's server whom to let in: %w", err)
	}
	if err := s.accounts.Store(claims.Subject, accountJWT); err != nil {
		return fmt.Errorf("tell the bus's server whom to let in: %w", err)
	}
	account, err := s.nats.LookupAccount(claims.Subject)
	if err != nil {
		return fmt.Errorf("tell the bus's server whom to let in: %w", err)
	}
	s.nats.UpdateAccountClaims(account, claims)
	return nil
}

// Connections returns the number of connected members and coordinators.
func (s *Server) Connections() int { return s.nats.NumClients() }

// Close ends all connections and closes the store. Members reconnect by themselves.
func (s *Server) Close() {
	s.entrance.listener.Close()
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	s.entrance.close()
}
