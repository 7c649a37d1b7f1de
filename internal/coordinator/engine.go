package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	// maxConnections bounds the embedded bus.
	maxConnections = 32 << 10
	// banFor is how long who floods its coordinators gets no JWT.
	banFor = 10 * time.Minute
)

// engine is the bus as this coordinator uses it: embedded, or an external cluster. What else there is does
// not see the difference.
type engine struct {
	link   *bus.Coordinator
	server *bus.Server // nil: the cluster is external
	system *bus.System // nil: it is embedded
}

// startEngine connects this coordinator to the bus, which it starts first if it is embedded. An external
// cluster may be away: the connection is made when it comes.
func (c *Coordinator) startEngine() (*engine, error) {
	e := &engine{}
	id, servers := c.config.Identity, []bus.Endpoint{}
	for _, s := range c.config.BusServers {
		servers = append(servers, bus.Endpoint(s))
	}
	if len(servers) == 0 {
		server, err := bus.Serve(bus.ServerConfig{
			Identity: id, Authority: c.authority, Listen: c.config.BusListen, Store: busDir(c.config.Dir) + "/store",
			MaxConnections: maxConnections, Seen: c.seen, Log: c.config.Log,
		})
		if err != nil {
			return nil, err
		}
		e.server, servers = server, []bus.Endpoint{server.Endpoint()}
	}
	config := func(jwt func(string, []byte, time.Time) (string, error)) bus.Config {
		return bus.Config{Identity: id, Servers: servers, Log: c.config.Log, JWT: func() (string, error) {
			return jwt(id.Name(), id.PublicKey(), id.Self().NotAfter)
		}}
	}
	var err error
	if e.server == nil {
		system := config(func(name string, key []byte, until time.Time) (string, error) {
			return c.authority.SystemJWT(name, key, until)
		})
		if e.system, err = bus.ConnectSystem(system, c.authority); err != nil {
			return nil, err
		}
	}
	link := config(func(name string, key []byte, until time.Time) (string, error) {
		return c.authority.CoordinatorJWT(name, key, until)
	})
	link.Changed = func(s bus.State) {
		if gate := c.gate.Load(); gate != nil && s.Connected {
			poke(gate.doubt)
		}
	}
	if e.link, err = bus.ConnectCoordinator(link, bus.Handlers{Handle: c.handle, Flood: c.flood}); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// ServerConfig writes the configuration of one nats-server of an external cluster that is to serve the
// collective of a coordinator's directory. See bus.External for what is the operator's to add.
func ServerConfig(dir string, e bus.External) (string, error) {
	authority, err := bus.OpenAuthority(busDir(dir))
	if err != nil {
		return "", err
	}
	return authority.ServerConfig(e)
}

// address is where the embedded bus listens; empty if it is external.
func (e *engine) address() string {
	if e.server == nil {
		return ""
	}
	return e.server.Endpoint().Address
}

// failed gets the embedded server's complaint if it cannot go on.
func (e *engine) failed() <-chan string {
	if e.server == nil {
		return nil
	}
	return e.server.Failed()
}

// replicas is on how many servers the directory's store is.
func (c *Coordinator) replicas() int {
	if len(c.config.BusServers) >= 3 {
		return 3
	}
	return 1
}

// setAccount tells the servers whom to let in no more.
func (e *engine) setAccount(ctx context.Context, accountJWT string) error {
	if e.server != nil {
		return e.server.SetAccount(ctx, accountJWT)
	}
	return e.system.SetAccount(ctx, accountJWT)
}

// damaged says whether the embedded store has lost anything.
func (e *engine) damaged() bool { return e.server != nil && len(e.server.Damage()) > 0 }

func (e *engine) close() {
	if e.link != nil {
		e.link.Close()
	}
	if e.system != nil {
		e.system.Close()
	}
	if e.server != nil {
		e.server.Close()
	}
}

// tellAll sends a message to every member. Who does not get it asks.
func (c *Coordinator) tellAll(topic string, data []byte) error {
	e := c.engine.Load()
	if e == nil {
		return bus.ErrNotConnected
	}
	return e.link.TellAll(topic, data)
}

// errStarting is for who asks before the store is read.
var errStarting = errors.New("this coordinator is starting: ask again in a moment")

// handle answers what members ask. It is called from several goroutines.
func (c *Coordinator) handle(ctx context.Context, r bus.Request) ([]byte, error) {
	c.reach.heard(r.From, c.now())
	switch r.Topic {
	case enrol.TopicTrust:
		return c.answerTrust(string(r.Data))
	case enrol.TopicChecked:
		return nil, c.takeChecked(r.From, r.Data)
	case enrol.TopicEnforced:
		return nil, c.enforced.take(r.From, r.Data)
	case enrol.TopicReachability:
		return c.reachability(r.From)
	case enrol.TopicRecord, enrol.TopicDirectory, enrol.TopicPunch:
	default:
		return nil, fmt.Errorf("this coordinator knows nothing of %q: it may be older than you", r.Topic)
	}
	gate := c.gate.Load()
	if gate == nil {
		return nil, errStarting
	}
	switch r.Topic {
	case enrol.TopicDirectory:
		c.compareAsked(gate, r.From, r.Data)
		return gate.answer(r.Data)
	case enrol.TopicPunch:
		return nil, c.passPunch(gate, r.From, r.Data)
	}
	return c.takeRecord(ctx, gate, r.From, r.Data)
}

// flood cuts a member off for a while: its JWT counts no more, and it gets no other. It renews when that is
// over, and is back.
func (c *Coordinator) flood(name string) {
	c.floods.Add(1)
	if name == c.config.Identity.Name() {
		c.config.Log.Error("coordinator: this host's own agent floods it", "member", name)
		return // the key is the one that we use ourselves
	}
	c.enrolling.Lock()
	m, until := c.register.members[name], c.now().Add(banFor)
	if m == nil {
		c.enrolling.Unlock()
		return
	}
	c.banned[name] = until
	account, err := c.authority.Revoke(m.Key[:])
	c.enrolling.Unlock()
	if e := c.engine.Load(); err == nil && e != nil {
		ctx, cancel := context.WithTimeout(context.Background(), tellWithin)
		err = e.setAccount(ctx, account)
		cancel()
	}
	if err != nil {
		c.config.Log.Error("coordinator: a member that floods cannot be cut off", "member", name, "err", err)
		return
	}
	c.config.Log.Warn("coordinator: a member that floods was cut off", "member", name, "until", until)
}
