package paths

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Request is a probe of a flow whose time to live ends at Distance, from 1.
type Request struct {
	Flow, Distance int
}

// Reply is the answer to a probe.
type Reply struct {
	From       netip.Addr // the address that answered; invalid: none did
	RTT        time.Duration
	Last       bool // From is the destination, or refuses packets to the destination
	Reached    bool // From is the destination's address
	Translated bool // a NAT on the way changed the probe's source address or port
	Renumbered bool // a NAT changed its source port
}

// Prober sends probes and collects the answers.
type Prober interface {
	// Probe returns a reply to each request, in their order. It repeats probes that are not answered.
	Probe(context.Context, []Request) ([]Reply, error)
	// Sent returns the number of packets sent so far.
	Sent() int
}

// Options configure an exploration.
type Options struct {
	// Bound is the largest probability that a next hop is missed: at any router of the graph or, if PerRouter is set,
	// at each router. It holds for routers that choose all next hops equally often.
	Bound     float64
	PerRouter bool
	Light     bool // use the light variant until it proves unsound; the bound then assumes similar routers
	Ways      int  // number of distinct paths that are wanted, each with a flow
	MaxHops   int
	MaxProbes int
}

// Defaults and limits of options.
const (
	DefaultBound   = 0.05
	MinBound       = 1e-6
	DefaultHops    = 30
	DefaultProbes  = 20000
	mostHops       = 255
	mostSilentHops = 3 // number of silent hops in a row after which the destination is assumed to be silent
)

func (o Options) withDefaults() (Options, error) {
	if o.Bound == 0 {
		o.Bound = DefaultBound
	}
	if !(o.Bound >= MinBound && o.Bound <= 0.5) {
		return o, fmt.Errorf("the bound must be between %v and 0.5, not %v", MinBound, o.Bound)
	}
	if o.MaxHops == 0 {
		o.MaxHops = DefaultHops
	}
	if o.MaxHops < 1 || o.MaxHops > mostHops {
		return o, fmt.Errorf("the number of hops must be between 1 and %d, not %d", mostHops, o.MaxHops)
	}
	if o.MaxProbes == 0 {
		o.MaxProbes = DefaultProbes
	}
	return o, nil
}

// share returns the bound on the failure probability at the next router, if found load-balancing routers were found
// before. The shares are a series whose sum is the whole bound. So the bound holds even if a missed next hop hides
// other routers.
func (o Options) share(found int) float64 {
	if o.PerRouter {
		return o.Bound
	}
	return o.Bound / float64((found+1)*(found+2))
}

// ErrProbes means that the limit of probes was reached before the graph was complete.
var ErrProbes = errors.New("the limit of probes is reached")

// reserved is the divisor for the part of the probes that is kept for completing flows on distinct paths, if such flows
// are wanted. Even with an incomplete graph these flows are useful.
const reserved = 10

// explorer is an exploration in progress. hops[d] holds the findings at distance d, and hops[0] the source.
type explorer struct {
	prober  Prober
	options Options
	stops   *stops
	hops    []hop
	flows   int // number of flows; they are numbered from 0
	asked   int
	most    int // limit of asked
	full    bool
	paths   map[Request]Reply
}

// hop holds the flows that were probed at a distance.
type hop struct {
	vertices []netip.Addr // in the order of discovery; the invalid address stands for all that do not answer
	flows    map[netip.Addr][]int
	last     map[netip.Addr]bool // whether a vertex is the destination
}

// Explore finds the paths. On an error, it also returns the graph found so far.
func Explore(ctx context.Context, p Prober, o Options) (*Graph, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &explorer{
		prober: p, options: o, most: o.MaxProbes, full: !o.Light, paths: map[Request]Reply{},
		hops: []hop{{vertices: []netip.Addr{{}}, flows: map[netip.Addr][]int{}}},
	}
	if o.Ways > 0 {
		e.most -= o.MaxProbes / reserved
	}
	for bound := math.Inf(1); ; {
		share := o.share(e.graph().Branching())
		if share >= bound {
			break
		}
		bound = share
		e.stops = newStops(bound)
		if err = e.sweep(ctx); err != nil {
			break
		}
	}
	if e.most = o.MaxProbes; err == nil || errors.Is(err, ErrProbes) {
		err = cmp.Or(err, e.complete(ctx, o.Ways))
	}
	g := e.graph()
	g.Probes, g.Light, g.Bound, g.PerRouter = p.Sent(), !e.full, o.Bound, o.PerRouter
	return g, err
}

// sweep explores one distance after the other. If the light variant proves unsound, it explores all distances in full,
// and keeps the findings.
func (e *explorer) sweep(ctx context.Context) error {
	for d, silent := 1, 0; d <= e.options.MaxHops; d++ {
		if len(e.hops) == d {
			e.hops = append(e.hops, hop{flows: map[netip.Addr][]int{}, last: map[netip.Addr]bool{}})
		}
		sound := true
		var err error
		if e.full {
			err = e.fullHop(ctx, d)
		} else {
			sound, err = e.lightHop(ctx, d)
		}
		if err != nil {
			return err
		}
		if !sound {
			e.full, d, silent = true, 0, 0
			continue
		}
		if e.ended(d) {
			return nil
		}
		if silent++; slices.ContainsFunc(e.hops[d].vertices, netip.Addr.IsValid) {
			silent = 0
		}
		if silent == mostSilentHops {
			return nil
		}
	}
	return nil
}

// ended reports whether no path continues after distance d.
func (e *explorer) ended(d int) bool {
	for _, v := range e.hops[d].vertices {
		if !e.hops[d].last[v] {
			return false
		}
	}
	return true
}

// probe probes flows at distance d, and records the answers.
func (e *explorer) probe(ctx context.Context, d int, flows []int) error {
	var requests []Request
	for _, f := range flows {
		r := Request{f, d}
		if _, known := e.paths[r]; !known {
			requests = append(requests, r)
		}
	}
	if len(requests) == 0 {
		return nil
	}
	if e.asked += len(requests); e.asked > e.most {
		return fmt.Errorf("%w: %d", ErrProbes, e.options.MaxProbes)
	}
	replies, err := e.prober.Probe(ctx, requests)
	if err != nil {
		return err
	}
	for i, r := range replies {
		e.paths[requests[i]] = r
		h := &e.hops[d]
		if _, known := h.flows[r.From]; !known {
			h.vertices = append(h.vertices, r.From)
		}
		h.flows[r.From] = append(h.flows[r.From], requests[i].Flow)
		h.last[r.From] = h.last[r.From] || r.Last
	}
	return nil
}

// newFlows returns n flows that were not used yet.
func (e *explorer) newFlows(n int) (all []int) {
	for range n {
		all = append(all, e.flows)
		e.flows++
	}
	return all
}

// at returns the vertex of a flow at distance d, if it is known.
func (e *explorer) at(flow, d int) (v netip.Addr, known bool) {
	if d == 0 {
		return netip.Addr{}, true
	}
	if r, known := e.paths[Request{flow, d}]; known {
		return r.From, true
	}
	return e.alone(d)
}

// over reports whether a flow is known to reach the destination before distance d.
func (e *explorer) over(flow, d int) bool {
	for ; d > 1; d-- {
		if r, known := e.paths[Request{flow, d - 1}]; known && r.Last {
			return true
		}
	}
	return false
}
