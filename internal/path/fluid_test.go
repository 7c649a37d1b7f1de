package path_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// fluid plays a host with several connections that receive, in virtual time. Their subflows share links as TCP would:
// each link is divided evenly among the subflows that it limits, has a queue while it is full, and loses a packet
// from time to time.
type fluid struct {
	t      testing.TB
	m      *path.Manager
	start  time.Time
	now    time.Time
	random *rand.Rand
	ways   map[string]*way // by waypoint; "" is the direct one
	limit  int             // further subflows that the server accepts on a connection
	flows  []*transfer
	crowd  time.Duration // queue that other traffic of the host makes on its line
	idle   []string      // waypoints with a session that is measured
	lags   string        // waypoint whose session reports the round trip before the latest; empty: none
	came   time.Duration // when the latest of it was reported
	asked  int           // how often the manager asked for measurements of the sessions
	token  path.Token
	port   uint16
}

// way is a path.
type way struct {
	trip   time.Duration
	joined time.Duration // round trip of the join, which met a queue of others; 0: trip
	links  []*link
	loss   float64 // share of packets, at random
	near   bool    // the session with the waypoint waits on all links of its path, not only on those of the direct path
}

// link has a rate that its subflows share.
type link struct {
	rate   float64       // bits a second
	buffer time.Duration // queue while it is full
	calm   float64       // how much rarer than with Reno and CUBIC a subflow that it limits loses a packet
	full   bool
}

// transfer is one connection.
type transfer struct {
	token         path.Token
	local, remote netip.AddrPort
	lanes         []*lane
	demand        float64       // bits a second that the server's program sends; 0: as many as the network carries
	writes        time.Duration // interval at which it sends them
	weights       map[string]float64
	upTo, bytes   uint64
	paused        bool
	holes         bool    // data over the direct path waits for lost packets
	trickles      float64 // the share of it that arrives in a tenth of a second nevertheless, because they are repaired one by one
	window        float64 // bits that may be under way, because the receiver puts the data in order; 0: no limit
	held          string  // the waypoint for whose data the other subflows wait; empty: none
	burden        string  // the waypoint for whose data much of theirs waits while it carries; empty: none
	waits         uint64  // bytes that wait for it now
	// resent is the waypoint whose data the server sends again when its detour ends, on subflows that come later. It arrives
	// until the time until.
	resent  string
	until   time.Time
	stopped string // the waypoint for whose data the sender stops on the other subflows; empty: none
	log     []string
}

// lane is one subflow.
type lane struct {
	waypoint             string
	way                  *way // nil unless it carries
	local, remote        netip.AddrPort
	backup               bool
	surplus              bool // the server closes it
	began                time.Time
	rate, cap            float64
	before               float64 // rate
	limited              bool    // by the network
	credit               float64
	segments, late       uint64
	lateUntil, lastData  time.Time
	received, waiting    uint64
	fixed                bool // used by divide
	receiverRTT, dataAge time.Duration
}

// networks returns the number of random networks on which a property is tested: n, or an eighth with the race
// detector.
func networks(n uint64) uint64 {
	if raceDetector {
		return (n + 7) / 8
	}
	return n
}

func newFluid(t testing.TB, seed uint64, ways map[string]*way, change func(*path.Config)) *fluid {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true, Seed: seed}
	if change != nil {
		change(&config)
	}
	f := &fluid{
		t: t, m: path.New(config), start: start, now: start, random: rand.New(rand.NewPCG(seed, 5)), ways: ways, limit: 8, port: 20000,
	}
	f.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	return f
}

func (f *fluid) offer(waypoints ...string) {
	for _, w := range waypoints {
		f.tell(path.DetourOffered{Detour: path.Detour{
			ID: path.DetourID(w), Kind: path.InBand, Waypoint: w, Remote: netip.AddrPortFrom(addrOf(w), 0),
		}})
	}
}

func (f *fluid) withdraw(waypoint string) {
	f.tell(path.DetourWithdrawn{ID: path.DetourID(waypoint)})
}

// addrOf returns a waypoint's address.
func addrOf(waypoint string) netip.Addr {
	sum := uint8(0)
	for _, r := range waypoint {
		sum = sum*31 + uint8(r)
	}
	return netip.AddrFrom4([4]byte{198, 18, 7, sum})
}

// connect begins a connection whose server's program sends this many bits a second; 0: as many as the network
// carries.
func (f *fluid) connect(demand float64) *transfer {
	return f.connectTo(netip.AddrPortFrom(ip("web"), 80), demand)
}

// connectTo begins a connection to a server.
func (f *fluid) connectTo(server netip.AddrPort, demand float64) *transfer {
	f.token++
	f.port++
	d := &transfer{
		token: f.token, local: netip.AddrPortFrom(ip("me"), f.port), remote: server,
		demand: demand, writes: time.Duration(2+f.random.IntN(20)) * time.Millisecond, weights: make(map[string]float64),
	}
	d.lanes = []*lane{{local: d.local, remote: d.remote, began: f.now, lastData: f.now}}
	f.flows = append(f.flows, d)
	f.tell(path.ConnEstablished{Token: d.token, Local: d.local, Remote: d.remote})
	return d
}

func (f *fluid) close(d *transfer) {
	f.flows = slices.DeleteFunc(f.flows, func(x *transfer) bool { return x == d })
	f.tell(path.ConnClosed{Token: d.token})
}

func (f *fluid) of(token path.Token) *transfer {
	for _, d := range f.flows {
		if d.token == token {
			return d
		}
	}
	return nil
}

func (d *transfer) find(local netip.AddrPort) *lane {
	for _, l := range d.lanes {
		if l.local == local {
			return l
		}
	}
	return nil
}

func (d *transfer) over(waypoint string) *lane {
	for _, l := range d.lanes {
		if l.waypoint == waypoint {
			return l
		}
	}
	return nil
}

func (f *fluid) note(d *transfer, format string, args ...any) {
	d.log = append(d.log, fmt.Sprintf("%.1f ", f.now.Sub(f.start).Seconds())+fmt.Sprintf(format, args...))
}

func (f *fluid) tell(ev path.Event) {
	var follow []path.Event
	for _, a := range slices.Clone(f.m.Handle(ev, f.now)) {
		switch a := a.(type) {
		case path.CreateSubflow:
			d := f.of(a.Token)
			f.port++
			l := &lane{
				waypoint: a.Waypoint, local: netip.AddrPortFrom(ip("me"), f.port), remote: a.Remote, backup: a.Backup,
				began: f.now, lastData: f.now, surplus: len(d.lanes) > f.limit,
			}
			f.note(d, "join %s", name(a.Waypoint))
			follow = append(follow, path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: l.local},
				path.SubflowEstablished{Token: a.Token, LocalID: a.LocalID, Local: l.local, Remote: a.Remote})
			d.lanes = append(d.lanes, l)
		case path.DestroySubflow:
			if d := f.of(a.Token); d != nil {
				if l := d.find(a.Local); l != nil {
					f.note(d, "end %s", name(l.waypoint))
					d.drop(l)
					if l.waypoint == d.resent {
						d.until = f.now.Add(resentFor)
					}
				}
			}
		case path.SetBackup:
			if d := f.of(a.Token); d != nil {
				if l := d.find(a.Local); l != nil {
					if l.backup != a.Backup {
						f.note(d, "%s %s", map[bool]string{true: "demote", false: "promote"}[a.Backup], name(l.waypoint))
					}
					l.backup = a.Backup
				}
			}
		}
	}
	for _, ev := range follow {
		f.tell(ev)
	}
}

func (d *transfer) drop(l *lane) {
	d.lanes = slices.DeleteFunc(d.lanes, func(x *lane) bool { return x == l })
}

// run lets the connections receive for this time.
func (f *fluid) run(long time.Duration) {
	for end := f.now.Add(long); f.now.Before(end); {
		f.step()
	}
}

// step lets a tenth of a second pass.
func (f *fluid) step() {
	fill(f.prepare())
	f.advance()
}

// stepTogether lets a tenth of a second pass for several hosts that share their paths.
func stepTogether(hosts []*fluid) {
	var all []*lane
	for _, f := range hosts {
		all = append(all, f.prepare()...)
	}
	fill(all)
	for _, f := range hosts {
		f.advance()
	}
}

func (f *fluid) advance() {
	f.now = f.now.Add(dt)
	for _, d := range f.flows {
		for _, l := range d.lanes {
			f.arrive(d, l)
		}
	}
	for _, d := range slices.Clone(f.flows) {
		for _, l := range slices.Clone(d.lanes) {
			if l.surplus {
				d.drop(l)
				f.note(d, "refused %s", l.waypoint)
				f.tell(path.SubflowClosed{Token: d.token, Local: l.local, Remote: l.remote})
			}
		}
	}
	for {
		at, ok := f.m.Next()
		if !ok || at.After(f.now) {
			break
		}
		f.tell(path.Tick{})
	}
	f.tell(f.measured())
	asked := f.m.MeasuresSessions(f.now)
	if asked {
		f.asked++
	}
	if asked || f.now.Sub(f.start)%time.Second < dt {
		f.measureSessions()
	}
}

// measureSessions reports the round trips of the sessions, which wait in the direct path's queue.
func (f *fluid) measureSessions() {
	for _, w := range f.idle {
		trip := f.ways[w].trip / 2
		latest := trip + f.crowd + time.Duration(f.random.Float64()*float64(2*time.Millisecond))
		for _, k := range f.ways[w].links {
			if k.full && (f.ways[w].near || slices.Contains(f.ways[""].links, k)) {
				latest += k.queue(f.now.Sub(f.start))
			}
		}
		if w == f.lags {
			latest, f.came = max(trip, f.came), latest
		}
		f.tell(path.WaypointMeasured{Waypoint: w, Addr: addrOf(w), RTT: trip, Latest: latest})
	}
}

// queue returns the queue of a full link. It grows until packets are lost, then shrinks, every few seconds.
func (k *link) queue(since time.Duration) time.Duration {
	rate := k.rate / 1e3
	period := 2 + 3*(rate-math.Floor(rate))
	_, part := math.Modf(since.Seconds()/period + rate/7)
	return time.Duration((0.4 + 0.6*part) * float64(k.buffer))
}

// prepare returns the subflows that carry, with their own limits.
func (f *fluid) prepare() (all []*lane) {
	for _, w := range f.ways {
		for _, k := range w.links {
			k.full = false
		}
	}
	for _, d := range f.flows {
		if f.random.IntN(30) == 0 || len(d.weights) == 0 {
			for _, w := range slices.Sorted(maps.Keys(f.ways)) {
				d.weights[w] = 0.05 + f.random.Float64()
			}
		}
		carries := slices.DeleteFunc(slices.Clone(d.lanes), func(l *lane) bool { return l.backup || l.surplus })
		total := 0.0
		for _, l := range carries {
			total += d.weights[l.waypoint]
		}
		ahead := d.ahead(carries)
		for _, l := range carries {
			w := f.ways[l.waypoint]
			l.way = w
			l.cap = math.Inf(1)
			if w.loss > 0 {
				l.cap = 1.2 * 11200 / w.trip.Seconds() / math.Sqrt(w.loss)
			}
			if start := l.rate*1.5 + 10*11200/w.trip.Seconds()/4; f.now.Sub(l.began) < 3*time.Second {
				l.cap = min(l.cap, start)
			}
			if l != d.slowest(carries) {
				l.cap = min(l.cap, ahead)
			}
			switch {
			case d.paused, d.stopped != "" && l.waypoint != d.stopped && d.carries(d.stopped):
				l.cap = 0
			case d.held != "" && l.waypoint != d.held && d.over(d.held) != nil:
				l.cap = min(l.cap, 0.1*f.ways[l.waypoint].links[0].rate)
			case d.demand > 0:
				l.cap = min(l.cap, d.demand*d.weights[l.waypoint]/total)
			}
			l.before, l.rate, l.fixed, l.limited = l.rate, 0, false, false
		}
		all = append(all, carries...)
		for _, l := range d.lanes {
			if !slices.Contains(carries, l) {
				l.rate, l.limited = 0, false
			}
		}
	}
	return all
}

// slowest returns the subflow whose data takes longest.
func (d *transfer) slowest(carries []*lane) *lane {
	if len(carries) == 0 {
		return nil
	}
	return slices.MaxFunc(carries, func(a, b *lane) int { return cmp.Compare(a.receiverRTT, b.receiverRTT) })
}

// ahead returns the bits a second that each of the other subflows may have. What they bring while a byte is on the
// slowest path waits for that byte in the receiver's window.
func (d *transfer) ahead(carries []*lane) float64 {
	s := d.slowest(carries)
	if d.window == 0 || len(carries) < 2 || s.receiverRTT == 0 {
		return math.Inf(1)
	}
	return max(0, d.window/s.receiverRTT.Seconds()-s.rate) / float64(len(carries)-1)
}

// fill raises all rates together until a link or a subflow's own limit stops each of them.
func fill(all []*lane) {
	for {
		least, at := math.Inf(1), (*link)(nil)
		for _, x := range all {
			for _, k := range x.way.links {
				left, n := k.rate, 0
				for _, l := range all {
					if slices.Contains(l.way.links, k) {
						if l.fixed {
							left -= l.rate
						} else {
							n++
						}
					}
				}
				if n > 0 && max(left, 0)/float64(n) < least {
					least, at = max(left, 0)/float64(n), k
				}
			}
		}
		var lowest *lane
		for _, l := range all {
			if !l.fixed && l.cap <= least && (lowest == nil || l.cap < lowest.cap) {
				lowest = l
			}
		}
		switch {
		case lowest != nil:
			lowest.rate, lowest.fixed = lowest.cap, true
		case at != nil:
			at.full = true
			for _, l := range all {
				if !l.fixed && slices.Contains(l.way.links, at) {
					l.rate, l.fixed, l.limited = least, true, true
				}
			}
		default:
			return
		}
	}
}

// regrows returns the seconds that a window of TCP takes to grow back after a loss (RFC 9438).
func regrows(rate float64, trip time.Duration) float64 {
	window := rate * trip.Seconds() / 11200
	return max(0.2, min(window/2*trip.Seconds(), math.Cbrt(0.75*window)))
}

// arrive lets segments arrive.
func (f *fluid) arrive(d *transfer, l *lane) {
	w := f.ways[l.waypoint]
	l.receiverRTT = w.trip
	for _, k := range w.links {
		if k.full {
			l.receiverRTT += time.Duration((0.4 + 0.6*f.random.Float64()) * float64(k.buffer))
		}
		if k.full && l.limited && f.random.Float64() < dt.Seconds()/(k.calm*regrows(l.rate, l.receiverRTT)) {
			l.lateUntil = f.now.Add(l.receiverRTT)
		}
	}
	if l.limited && l.rate < 0.6*l.before { // the window is now much too large
		l.lateUntil = f.now.Add(3 * l.receiverRTT)
	}
	l.dataAge = f.now.Sub(l.lastData)
	n := 0
	l.credit += l.rate * dt.Seconds() / 11200
	for ; l.credit >= 1; l.credit-- {
		n++
		if f.random.Float64() < w.loss {
			l.lateUntil = f.now.Add(w.trip)
		}
		if f.now.Before(l.lateUntil) {
			l.late++
		}
	}
	if n == 0 {
		return
	}
	l.segments += uint64(n)
	l.waiting += uint64(1400 * n)
	arrives := l.waiting
	if d.holes && l.waypoint == "" {
		l.late += uint64(n)
		arrives = uint64(d.trickles * float64(l.waiting))
	}
	l.received += arrives
	d.upTo += arrives
	d.bytes += arrives
	l.waiting -= arrives
	l.lastData, l.dataAge = f.now, time.Duration(f.random.Float64()*float64(dt)/float64(n))
	if !l.limited && d.demand > 0 {
		l.dataAge = time.Duration(f.random.Float64() * float64(d.writes))
		l.receiverRTT += time.Duration(f.random.Float64() * float64(d.writes))
	}
}

// resentFor is the time in which what an ended detour had not delivered arrives. Meanwhile, resentBytes wait for it.
const (
	resentFor   = 2500 * time.Millisecond
	resentBytes = 8 << 20
)

func (f *fluid) measured() (ev path.Measured) {
	for _, d := range f.flows {
		var burden *lane
		if d.burden != "" {
			burden = d.over(d.burden)
		}
		if burden != nil && !burden.backup {
			d.waits = 8 << 20
		} else { // then it arrives on other paths
			d.upTo, d.waits = d.upTo+d.waits, 0
		}
		if !d.until.IsZero() && !f.now.Before(d.until) {
			d.upTo, d.until = d.upTo+resentBytes, time.Time{}
		}
		ev.Progress = append(ev.Progress, path.Progress{Token: d.token, Received: d.upTo})
		for _, l := range d.lanes {
			end := d.upTo
			if l != burden {
				end += d.waits
			}
			if f.now.Before(d.until) && l.began.Before(d.until.Add(-resentFor)) {
				end += resentBytes
			}
			trip := cmp.Or(f.ways[l.waypoint].joined, f.ways[l.waypoint].trip)
			ev.Samples = append(ev.Samples, path.Sample{
				Token: d.token, Local: l.local, Remote: l.remote, BytesReceived: l.received, MinRTT: trip, RTT: trip, ReceiverRTT: l.receiverRTT, Timestamps: true,
				SegsIn: l.segments, DataSegsIn: l.segments, OutOfOrder: l.late, DataEnd: end, Gap: l.waiting > 0,
				LastData: l.dataAge, LastAnswer: l.dataAge, LastSent: f.now.Sub(f.start),
			})
		}
	}
	return ev
}

// rate returns the bits a second that a connection received during this time.
func (f *fluid) rate(d *transfer, long time.Duration) float64 {
	before := d.bytes
	f.run(long)
	return 8 * float64(d.bytes-before) / long.Seconds()
}

// queued returns a link with a rate in Mbit/s, whose buffer holds what comes in this time.
func queued(mbit float64, buffer time.Duration) *link {
	return &link{rate: mbit * 1e6, buffer: buffer, calm: 1}
}

func wayOf(trip time.Duration, links ...*link) *way { return &way{trip: trip, links: links} }

// why returns the reason for a connection's detour.
func (f *fluid) why(d *transfer, waypoint string) string {
	for _, c := range f.m.Snapshot(f.now).Conns {
		for _, s := range c.Subflows {
			if c.Token == d.token && s.Waypoint == waypoint {
				return s.Why
			}
		}
	}
	return ""
}

// warm lets one connection measure its paths.
func (f *fluid) warm() *transfer {
	d := f.connect(0)
	f.run(20 * time.Second)
	return d
}
