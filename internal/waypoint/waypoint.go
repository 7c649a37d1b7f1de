package waypoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Config is what an operator decides.
type Config struct {
	Allow, Deny []netip.Prefix // see egress.New
	DenyPorts   []uint16

	MappingsPerMember    int
	ConnectionsPerMember int          // 0: no limit
	RatePerMember        int          // new connections per second; 0: no limit
	BandwidthPerMember   int64        // bytes per second, both directions together; 0: no limit
	Bandwidth            int64        // bytes per second of all members together, in each direction; 0: no limit
	Quota                uint64       // bytes in a month of all members together, both directions; 0: no quota
	Hours                giving.Hours // when connections may be opened
	MappingLifetime      time.Duration
	InBand               InBandMode
	// FastPath lets packets of established mapped and in-band detours pass by netfilter, where neither
	// a limit of bandwidth nor a quota wants to see each.
	FastPath bool

	Log    string // file of the attribution log
	Author attribution.Author
	Record string // file that remembers the sysctls we changed
	Memory string // file that remembers SwitchOff, and what was used of the quota
	// Counts is a file for what the fast path has carried of connections that outlive the agent. As the
	// connections do not outlive the host, it is better where a reboot removes it.
	Counts string

	// Marks are the bits of packet and connection marks that are ours; 0: rules.DefaultMarks.
	Marks rules.Marks
	// Outside tells how others see this host, now and whenever that changes; nil: nobody knows.
	Outside <-chan egress.Outside

	// Tell is told whether the waypoint gives: before Start returns, and when that has changed. It
	// must not block, nor call the waypoint. May be nil.
	Tell func(giving.Standing)
}

// everyPacket tells whether there is a rule that must see every packet.
func (c Config) everyPacket() bool { return c.BandwidthPerMember > 0 || c.Bandwidth > 0 || c.Quota > 0 }

func (c Config) options() rules.Options {
	return rules.Options{Marks: c.marks(), Connections: c.ConnectionsPerMember, Rate: c.RatePerMember, Bandwidth: c.BandwidthPerMember,
		Total: c.Bandwidth, Quota: c.Quota, InBand: c.InBand}
}

func (c Config) marks() rules.Marks {
	if c.Marks == 0 {
		return rules.DefaultMarks
	}
	return c.Marks
}

// Peer is the member at the other end of a session.
type Peer struct {
	ID     uint64 // of the session, unique while the agent runs
	Name   string // as in its certificate
	Serial string // of that certificate
	Addr   netip.Addr
	Proof  *wire.Proof // what the member has signed for the session; SessionUp takes note of it
}

func (p Peer) client() netip.Addr { return p.Addr.Unmap().WithZone("") }

// Waypoint grants mappings, and admits members to the kinds of detours that lead to any server. One
// goroutine owns its state; methods may be called from any.
type Waypoint struct {
	config Config
	kernel kernel
	log    *slog.Logger
	record *attribution.Log

	requests chan *request
	asks     chan func()
	flow     chan flowNews
	stop     chan struct{}
	stopOnce sync.Once
	running  sync.WaitGroup

	flowsMu sync.Mutex // kernel.flows answers one at a time

	// Owned by run:
	index     *index
	members   *members
	guarded4  []string
	guarded6  []string
	vicinity  vicinity
	policy    *egress.Policy // for these surroundings
	forbidden []egress.Range // by the policy
	listening listeners
	live      map[netstate.Tuple]liveFlow
	fast      map[netstate.Tuple]*fastFlow // by origin, of those in live; also those that are only watched
	refusals  *attribution.Refusals
	sessions  *sessions
	passes    passes
	tunnels   map[netip.Addr]*tunnelAddr
	// tunnelInterfaces are those that members' packets come out of, in order.
	tunnelInterfaces []string
	given            given
	stopped          []rules.MemberID // in order; the log has no room for more servers of theirs (stopping.go)
	problems         problems
	eventsLost       uint64
	outOfStep        bool // the table could not be written as the index is
	// Addresses whose keys for in-band detours could not be written, when filters are to be looked
	// after, and why some interfaces have none for SYNs.
	staleKeys   map[netip.Addr]bool
	attachDue   time.Time
	notAttached string
	notFast     string // why some interfaces have no fast path
	saidSlow    bool   // that a connection could not get onto it
}

// tableCheck is how often the table is looked for: a reload of the host's firewall flushes it.
const tableCheck = time.Second

// Start begins to serve in the calling thread's network namespace: it adopts the mappings and the
// flows that an earlier agent left, or sets everything up.
func Start(config Config, log *slog.Logger) (*Waypoint, error) {
	log = log.With("subsystem", "waypoint")
	k, err := openKernel(config)
	if err != nil {
		return nil, fmt.Errorf("start the waypoint: %w", err)
	}
	if k.noFast != nil {
		log.Warn("eBPF does not look at the packets of detours: netfilter sees each, which costs more, and "+
			"strangers who know a detour's ports can end it", "err", k.noFast)
	}
	w, err := start(config, k, log)
	if err != nil {
		return nil, fmt.Errorf("start the waypoint: %w", errors.Join(err, k.events.Close(), k.close()))
	}
	return w, nil
}

func start(config Config, k kernel, log *slog.Logger) (*Waypoint, error) {
	policy, err := egress.New(config.Allow, config.Deny, config.DenyPorts)
	if err != nil {
		return nil, err
	}
	w := &Waypoint{
		config:    config,
		policy:    policy,
		kernel:    k,
		log:       log,
		requests:  make(chan *request, maxBatch),
		asks:      make(chan func()),
		flow:      make(chan flowNews),
		stop:      make(chan struct{}),
		index:     newIndex(),
		members:   newMembers(config.marks().MaxMembers()),
		live:      make(map[netstate.Tuple]liveFlow),
		fast:      make(map[netstate.Tuple]*fastFlow),
		vicinity:  vicinity{own: k.own, onLink: k.onLink},
		refusals:  attribution.NewRefusals(),
		sessions:  newSessions(),
		passes:    make(passes),
		tunnels:   make(map[netip.Addr]*tunnelAddr),
		problems:  make(problems),
		staleKeys: make(map[netip.Addr]bool),
	}
	w.record = attribution.Open(config.Log, config.Author, attribution.DefaultLimits, log)
	if err := w.adopt(); err != nil {
		close(w.stop)
		w.running.Wait()
		return nil, errors.Join(err, w.record.Close())
	}
	w.running.Go(w.run)
	w.running.Go(w.readEvents)
	return w, nil
}

// adopt takes over what is there already.
func (w *Waypoint) adopt() error {
	if err := w.readSurroundings(); err != nil {
		return err
	}
	if err := w.rememberGiven(); err != nil {
		return err
	}
	if err := w.adoptTable(); err != nil {
		return err
	}
	w.recallSessions()
	w.checkGiven(time.Now())
	w.tellGiven()
	w.dropForeignKeys()
	w.attach(time.Now())
	return w.adoptFlows()
}

// Close ends the agent's part. Mappings and connections live on in the kernel; CleanUp ends them.
func (w *Waypoint) Close() error {
	w.stopOnce.Do(func() { close(w.stop) })
	err := w.kernel.events.Close() // wakes readEvents
	w.running.Wait()
	return errors.Join(err, w.closeGiven(), w.closeCounts(), w.kernel.close(), w.record.Close())
}

// run owns the state. In each round it does one thing of: requests and what came with them, a
// question, news of flows, changed surroundings, expiries, the check of the table.
func (w *Waypoint) run() {
	check := time.NewTicker(tableCheck)
	defer check.Stop()
	addresses := w.kernel.addresses
	for {
		select {
		case r := <-w.requests:
			w.serve(r)
		case ask := <-w.asks:
			ask()
		case news := <-w.flow:
			w.noteFlows(news)
		case _, ok := <-addresses:
			if !ok {
				addresses = nil
				break
			}
			w.addressesChanged()
		case o := <-w.config.Outside:
			w.outsideChanged(o)
		case <-check.C:
			w.expire()
			w.checkTable()
			w.checkGiven(time.Now())
			w.checkStopped()
			w.checkFilters(time.Now())
			w.lookAtWatched(time.Now())
			w.keepEntries(time.Now())
		case <-w.stop:
			return
		}
	}
}

// Map asks for a port of this host that leads to a server. Concurrent calls share a transaction.
func (w *Waypoint) Map(ctx context.Context, peer Peer, req wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	r := &request{peer: peer, MapRequest: req, answer: make(chan answer, 1)}
	select {
	case w.requests <- r:
	case <-ctx.Done():
		return wire.MapGrant{}, refuse(req.ID, wire.Busy, "")
	case <-w.stop:
		return wire.MapGrant{}, refuse(req.ID, wire.ShuttingDown, "")
	}
	select {
	case a := <-r.answer:
		return a.grant, a.refusal
	case <-ctx.Done():
		return wire.MapGrant{}, refuse(req.ID, wire.Busy, "")
	case <-w.stop:
		return wire.MapGrant{}, refuse(req.ID, wire.ShuttingDown, "")
	}
}

// errStopped says that the waypoint was closed.
var errStopped = errors.New("the waypoint has stopped")

// ask runs f where the state is owned.
func (w *Waypoint) ask(f func()) error { return w.askIn(context.Background(), f) }

// askIn is ask for as long as ctx lasts.
func (w *Waypoint) askIn(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case w.asks <- func() { f(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.stop:
		return errStopped
	}
}

// unasked is the refusal of a request that askIn did not get through.
func unasked(ctx context.Context, id uint64) *wire.Refusal {
	if ctx.Err() != nil {
		return refuse(id, wire.Busy, "")
	}
	return refuse(id, wire.ShuttingDown, "")
}
