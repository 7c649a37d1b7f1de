package gate

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/strangers"
)

// maxConnections bounds the connections of the embedded bus.
const maxConnections = 32 << 10

// BusConfig holds what a Bus needs.
type BusConfig struct {
	Identity  *collective.Identity
	Authority *bus.Authority
	External  []enrol.Endpoint // servers of an external cluster; none: the bus is embedded
	Listen    string           // host:port of the embedded bus
	Store     string           // folder of the embedded bus
	Seen      *strangers.Seen  // addresses of members
	Log       *slog.Logger
}

// Bus is a coordinator's end of the bus, embedded or external. It is connected between Start and Stop; before and
// after, messages fail with bus.ErrNotConnected. It is safe for concurrent use.
type Bus struct {
	config BusConfig
	up     atomic.Pointer[connection]
}

// connection is a bus that was started.
type connection struct {
	link   *bus.Coordinator
	server *bus.Server // nil if the cluster is external
	system *bus.System // nil if the bus is embedded
}

// NewBus returns a bus that is not connected yet.
func NewBus(c BusConfig) *Bus { return &Bus{config: c} }

// Start starts the embedded server, if the bus is embedded, and connects to it. An external cluster may be away: then
// the connection is made when it is back. Connected is called after each connect.
func (b *Bus) Start(h bus.Handlers, connected func()) error {
	c := &connection{}
	if err := b.connect(c, h, connected); err != nil {
		c.close()
		return err
	}
	b.up.Store(c)
	return nil
}

func (b *Bus) connect(c *connection, h bus.Handlers, connected func()) (err error) {
	id, authority, servers := b.config.Identity, b.config.Authority, []bus.Endpoint{}
	for _, s := range b.config.External {
		servers = append(servers, bus.Endpoint(s))
	}
	if len(servers) == 0 {
		c.server, err = bus.Serve(bus.ServerConfig{
			Identity: id, Authority: authority, Listen: b.config.Listen, Store: b.config.Store,
			MaxConnections: maxConnections, Seen: b.config.Seen, Log: b.config.Log,
		})
		if err != nil {
			return err
		}
		servers = []bus.Endpoint{c.server.Endpoint()}
	}
	config := func(jwt func(name string, key []byte, until time.Time) (string, error)) bus.Config {
		return bus.Config{Identity: id, Servers: servers, Log: b.config.Log, JWT: func() (string, error) {
			return jwt(id.Name(), id.PublicKey(), id.Self().NotAfter)
		}}
	}
	if c.server == nil {
		system := config(func(name string, key []byte, until time.Time) (string, error) {
			return authority.SystemJWT(name, key, until)
		})
		if c.system, err = bus.ConnectSystem(system, authority); err != nil {
			return err
		}
	}
	link := config(func(name string, key []byte, until time.Time) (string, error) {
		return authority.CoordinatorJWT(name, key, until)
	})
	link.Changed = func(s bus.State) {
		if s.Connected {
			connected()
		}
	}
	c.link, err = bus.ConnectCoordinator(link, h)
	return err
}

// Stop ends the connection, and the embedded server.
func (b *Bus) Stop() {
	if c := b.up.Swap(nil); c != nil {
		c.close()
	}
}

func (c *connection) close() {
	if c.link != nil {
		c.link.Close()
	}
	if c.system != nil {
		c.system.Close()
	}
	if c.server != nil {
		c.server.Close()
	}
}

// server returns the embedded server, or nil.
func (b *Bus) server() *bus.Server {
	if c := b.up.Load(); c != nil {
		return c.server
	}
	return nil
}

// Tell sends a message to a member.
func (b *Bus) Tell(to, topic string, data []byte) error {
	c := b.up.Load()
	if c == nil {
		return bus.ErrNotConnected
	}
	return c.link.Tell(to, topic, data)
}

// TellAll sends a message to every member. Members that miss it must request the news.
func (b *Bus) TellAll(topic string, data []byte) error {
	c := b.up.Load()
	if c == nil {
		return bus.ErrNotConnected
	}
	return c.link.TellAll(topic, data)
}

// Flush waits until the server has taken all messages.
func (b *Bus) Flush(ctx context.Context) error {
	c := b.up.Load()
	if c == nil {
		return bus.ErrNotConnected
	}
	return c.link.Flush(ctx)
}

// Bucket opens a bucket.
func (b *Bus) Bucket(ctx context.Context, name string, replicas int) (*bus.Bucket, error) {
	c := b.up.Load()
	if c == nil {
		return nil, bus.ErrNotConnected
	}
	return c.link.Bucket(ctx, name, replicas)
}

// MayBeConnected reports whether a member is connected. It reports true for an external bus, where that is not known.
func (b *Bus) MayBeConnected(name string) bool {
	s := b.server()
	return s == nil || s.Connected(name)
}

// Addresses returns the addresses from which a member is connected; none for an external bus, where they are not known.
func (b *Bus) Addresses(name string) []netip.Addr {
	if s := b.server(); s != nil {
		return s.Addresses(name)
	}
	return nil
}

// Embedded reports whether the bus is embedded.
func (b *Bus) Embedded() bool { return len(b.config.External) == 0 }

// Up reports whether the bus is started.
func (b *Bus) Up() bool { return b.up.Load() != nil }

// State returns the state of this coordinator's connection, or nil if the bus is not started.
func (b *Bus) State() (*bus.State, bus.Counts) {
	c := b.up.Load()
	if c == nil {
		return nil, bus.Counts{}
	}
	state := c.link.State()
	return &state, c.link.Counts()
}

// Address returns the address at which the embedded bus listens; empty: it does not.
func (b *Bus) Address() string {
	if s := b.server(); s != nil {
		return s.Endpoint().Address
	}
	return ""
}

// Failed has a value when the embedded server cannot go on.
func (b *Bus) Failed() <-chan string {
	if s := b.server(); s != nil {
		return s.Failed()
	}
	return nil
}

// Damage lists what the embedded server found damaged when it started.
func (b *Bus) Damage() []string {
	if s := b.server(); s != nil {
		return s.Damage()
	}
	return nil
}

// Cut ends a member's connections to the embedded server.
func (b *Bus) Cut(name string) {
	if s := b.server(); s != nil {
		s.Cut(name)
	}
}

// SetAccount gives the servers a new account, which refuses the JWTs of members that were expelled or banned.
func (b *Bus) SetAccount(ctx context.Context, accountJWT string) error {
	c := b.up.Load()
	switch {
	case c == nil:
		return bus.ErrNotConnected
	case c.server != nil:
		return c.server.SetAccount(ctx, accountJWT)
	}
	return c.system.SetAccount(ctx, accountJWT)
}
