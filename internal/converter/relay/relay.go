package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/converter/capture"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/server"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// lonely is the time after which a relay without an agent and without connections ends.
const lonely = 15 * time.Minute

// Config configures a relay.
type Config struct {
	Dir     string // for its sockets
	Version string
	Log     *slog.Logger
}

// relay is the state of the process.
type relay struct {
	config    Config
	log       *slog.Logger
	group     *errgroup.Group
	engines   context.Context // ends the connections
	stop      context.CancelFunc
	capturing context.Context // ends when no more connections are accepted
	drained   chan struct{}   // closed when no more connections are accepted
	inherited map[string]*listener
	budget    *engine.Budget // of all parts

	mu       sync.Mutex
	server   *server.Front // nil until this host is a converter
	incoming incoming
	receiver *server.Receiver // nil until converters may bring connections to this host
	user     *user            // nil: this host uses no converters
	using    *Use             // of the last State, with a later change of its mode
	captured captured
	led      *led
	parts    map[string]*part
	said     map[string]string // problems that were logged, by part
	agents   int               // connections to the control socket
	left     time.Time         // when the last agent left
	draining bool
}

// partsMost is the most parts that a relay usually has.
const partsMost = 6

// part is an engine with its listener.
type part struct {
	address  string
	fastOpen bool
	listener *listener      // nil: listening failed
	bound    netip.AddrPort // where it listens; zero: nowhere
	problem  string
	engine   *engine.Engine
	stop     context.CancelFunc // ends its connections
}

// Run relays connections until ctx ends, until another relay has taken over and the last connection has ended, or until
// nobody needs it. It needs its own process. That ignores SIGHUP, which users may send to all of dcol's processes to
// make the agent read its configuration again.
func Run(ctx context.Context, config Config) error {
	signal.Ignore(syscall.SIGHUP)
	inherited, err := takeOver(config.Dir)
	if err != nil {
		// An old relay that does not answer must not prevent this one from starting.
		config.Log.Warn("the relay before hands over nothing", "err", err)
	}
	servers, err := openLed(config.Dir)
	if err != nil {
		config.Log.Warn("after this relay, the servers of connections to converters will not be known", "err", err)
	}
	defer servers.close()
	control, err := listenControl(config.Dir)
	if err != nil {
		return err
	}
	engines, stop := context.WithCancel(ctx)
	defer stop()
	capturing, endCapturing := context.WithCancel(engines)
	defer endCapturing()
	r := &relay{
		config: config, log: config.Log, group: &errgroup.Group{}, engines: engines, stop: stop, capturing: capturing, drained: make(chan struct{}),
		captured: captured{by: make(map[string]*capture.Capture)}, budget: engine.NewBudget(0, partsMost), incoming: newIncoming(), led: servers,
		inherited: inherited, parts: make(map[string]*part), said: make(map[string]string), left: time.Now(),
	}
	controlling, endControl := context.WithCancel(engines)
	defer endControl()
	var listening errgroup.Group
	listening.Go(func() error { return r.control(controlling, control) })
	idle := time.NewTicker(time.Minute)
	defer idle.Stop()
	for waiting := true; waiting; {
		select {
		case <-engines.Done():
			waiting = false
		case <-r.drained:
			waiting = false
		case now := <-idle.C:
			r.endIncoming(now)
			waiting = !r.isLonely(now)
		}
	}
	endControl()
	endCapturing()
	err = listening.Wait()
	if !r.isDraining() {
		stop()
	}
	r.closeListeners()
	if waited := r.group.Wait(); err == nil {
		err = waited
	}
	return errors.Join(err, r.endCaptures())
}

// visited counts the connections to the control socket.
func (r *relay) visited(by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agents += by
	r.left = time.Now()
	if r.agents == 0 {
		r.release()
	}
}

func (r *relay) isLonely(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.parts {
		if p.engine != nil && p.engine.Counters().Pairs > 0 {
			return false
		}
	}
	return r.agents == 0 && now.Sub(r.left) > lonely
}

func (r *relay) isDraining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining
}

// apply makes the relay do what the State says.
func (r *relay) apply(s State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return
	}
	if s.Serve == nil {
		r.drop(PartServe)
		r.takeIncoming([]Incoming{})
	} else {
		r.serve(*s.Serve)
		r.takeIncoming(s.Serve.Incoming)
	}
	r.receive(s.Receive)
	r.follow(s.Use)
	for name, f := range r.inherited { // of a State of the previous relay
		if s.Serve != nil && s.Serve.Incoming == nil && strings.HasPrefix(name, partIncoming) {
			continue
		}
		f.close()
		delete(r.inherited, name)
	}
}

// follow makes the relay lead programs to converters as u says; nil: to none.
func (r *relay) follow(u *Use) {
	if r.using = u; u == nil {
		r.unuse()
	} else {
		r.use(*u)
	}
}

// setMode changes for which servers converters are used, and reports whether it did. A mode other than Never cannot bring
// back what Never has ended: only an agent's State can.
func (r *relay) setMode(mode choice.Mode) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	if r.using == nil {
		return true
	}
	next := *r.using
	next.Mode = mode
	switch {
	case mode == choice.Never && next.Proxy == "":
		r.follow(nil)
	case mode == choice.Never:
		r.follow(&Use{Mode: choice.Never, Proxy: next.Proxy})
	default:
		r.follow(&next)
	}
	return true
}

// serve makes the relay serve members at a port.
func (r *relay) serve(s Serve) {
	if r.server == nil {
		r.server = server.New(s.Key)
	}
	r.server.SetKey(s.Key)
	if s.Servers != nil {
		policy, err := egress.New(s.Servers.Allow, s.Servers.Deny, s.Servers.DenyPorts)
		if err != nil {
			r.log.Error("the servers that members may use are not as configured", "err", err)
		} else {
			r.server.Permit(policy.Check)
		}
	}
	r.keep(PartServe, entrance{address: fmt.Sprintf(":%d", s.Port), fastOpen: s.FastOpen, refusesFull: true, front: always(r.server)})
}

// entrance describes where connections come in, and how they are treated.
type entrance struct {
	address     string
	transparent bool // connections to any address may come in
	fastOpen    bool // their SYNs may have data (TCP Fast Open)
	refusesFull bool // clients are refused whose data fills their share of the kernel's memory
	loops       int  // of its engine; 0: the engine's default
	front       func(port uint16) engine.Front
}

// always returns a function that returns the front f for each port.
func always(f engine.Front) func(uint16) engine.Front { return func(uint16) engine.Front { return f } }

// keep listens at an entrance and relays the connections that come in, unless the part does so already.
func (r *relay) keep(name string, e entrance) *part {
	if p := r.parts[name]; p != nil && p.address == e.address && p.fastOpen == e.fastOpen && p.engine != nil {
		return p
	}
	r.drop(name)
	ctx, stop := context.WithCancel(r.engines)
	p := &part{address: e.address, fastOpen: e.fastOpen, stop: stop}
	r.parts[name] = p
	log := r.log.With("part", name, "address", e.address)
	var err error
	if p.listener, err = r.listen(name, e); err == nil {
		p.bound = boundAt(p.listener.fd)
		p.engine, err = engine.New(engine.Config{
			Listeners: []int{p.listener.fd}, Front: e.front(p.bound.Port()), Loops: e.loops, RefuseFull: e.refusesFull, Budget: r.budget, Log: log,
		})
	}
	if err != nil {
		stop()
		if p.problem = err.Error(); r.said[name] != p.problem {
			log.Error("cannot relay", "err", err)
		}
		r.said[name] = p.problem
		return p
	}
	delete(r.said, name)
	log.Info("relaying")
	r.group.Go(func() error {
		defer stop()
		return p.engine.Run(ctx)
	})
	return p
}

// drop stops accepting connections for a part. Open connections continue.
func (r *relay) drop(name string) {
	p := r.parts[name]
	if p == nil {
		return
	}
	delete(r.parts, name)
	if p.engine != nil {
		p.engine.Drain()
	}
	if p.listener != nil {
		p.listener.close()
	}
}

// handOver returns the listeners with the names under which the next relay finds them, and stops accepting connections.
// With the listeners it returns the kernel's maps of redirected connections and their servers.
func (r *relay) handOver() (names []string, fds []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
	r.release()
	for cgroup, c := range r.captured.by {
		names, fds = append(names, sourcesName(cgroup)), append(fds, c.Sources().FD())
	}
	if r.user != nil {
		r.user.stop()
	}
	for name, p := range r.parts {
		if p.listener != nil {
			names, fds = append(names, handed(name, p.address)), append(fds, p.listener.fd)
		}
		if p.engine != nil {
			p.engine.Drain()
		}
	}
	return names, fds
}

// end ends the process: at once, or with the last connection.
func (r *relay) end(now bool) {
	if now {
		r.stop()
		return
	}
	close(r.drained)
}

func (r *relay) closeListeners() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release()
	for _, p := range r.parts {
		if p.listener != nil {
			p.listener.close()
		}
	}
}

func (r *relay) status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Version: r.config.Version, PID: os.Getpid(), Parts: make(map[string]*Part), Capture: r.captureProblem()}
	for name, p := range r.parts {
		out := &Part{Listen: p.address, Problem: p.problem}
		if p.bound.IsValid() {
			out.Listen = p.bound.String()
		}
		if p.engine != nil {
			out.Counters = p.engine.Counters()
		}
		s.Parts[name] = out
	}
	if r.user != nil {
		s.Aside = r.user.client.Aside()
		s.Excluded, s.ExcludedAll = r.user.client.Excluded(excludedShown)
	}
	return s
}
