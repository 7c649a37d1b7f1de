// Package report sums up the connections of a capture, and writes the results as words, JSON, CSV and a page.
package report

import (
	"math"
	"net/netip"
	"strconv"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// Size classes of the thesis (2019, 3.3.4).
const (
	smallSize = 50e3
	largeSize = 5e6
	// rttSize is the least size of connections whose round trips are compared (3.3.3).
	rttSize = 100e3
)

// maxAddresses bounds the number of different addresses that are counted.
const maxAddresses = 1 << 18

// Totals sums up connections. Merge combines the totals of several workers.
type Totals struct {
	Connections, Midway uint64
	Versions            map[string]uint64
	Fallbacks           map[string]uint64
	Ends                map[string]uint64
	Shapes              map[string]uint64 // of connections with two and more subflows
	Anomalies           map[string]uint64
	Subflows            map[int]uint64 // connections by their number
	AllSubflows         uint64
	MaxSubflows         int
	States              map[string]uint64
	WrongHMAC           uint64
	Ports               map[uint16]Traffic
	clients             map[netip.Addr]struct{}
	prefixes            map[netip.Prefix]struct{}
	fallen              map[netip.Addr]struct{} // clients of connections that fell back
	IPv4, IPv6          uint64                  // connections

	Bytes           uint64
	Duration, Size  Histogram
	Empty           uint64 // connections of 2 bytes: the two DATA_FINs
	Joins           Histogram
	FirstJoins      Histogram // the first of each connection
	JoinsWithin     [3]uint64 // joinLimits
	Goodput         Histogram
	SubflowGoodput  Histogram
	SubflowRTT      Histogram
	RTTChange       Histogram
	Spread          Histogram
	Within10ms      uint64
	Above1s         uint64
	SecondBest      [4]Histogram
	Initial         [3]InitialShare
	Additional      uint64 // established, besides the first
	Unused          uint64
	UnusedBetter    uint64
	UnusedCompared  uint64
	UnusedSize      [2]uint64 // connections with unused subflows: of less than 1,000 and 20,000 bytes
	WithUnused      uint64
	Several         uint64 // connections of two and more subflows with data
	Reinjecting     uint64 // of these
	Retransmitting  uint64
	Reinjected      uint64 // bytes
	Retransmitted   uint64
	Reinjections    uint64
	ReinjectedAfter map[string]uint64
	ReinjectedShare Histogram
	RepeatedShare   Histogram
	ReinjectionAt   [Bins]uint64
	RepeatAt        [Bins]uint64
	Handovers       map[string]uint64
	HandoverGaps    Histogram
	Signals         map[string]Signals
	EchoDelay       Histogram
	Stalls          uint64
	Stalled         float64
	StalledConns    uint64
	Blocked         float64
	Blockages       uint64
	BlockedConns    uint64
	MaxFlight       Histogram
	Idle            Histogram
	Largest         []Listed // the connections with most data
}

// Bins is the number of parts of a connection's duration.
const Bins = 50

// joinLimits are the delays, in seconds, within which joins are counted.
var joinLimits = [3]float64{1, 60, 3600}

// bestRTTs are the bounds of the classes of SecondBest, in seconds.
var bestRTTs = [3]float64{0.04, 0.1, 0.2}

var secondBestClasses = [4]string{"below 40 ms", "of 40 to 100 ms", "of 100 to 200 ms", "200 ms and more"}

// Traffic counts connections and their data.
type Traffic struct {
	Connections uint64 `json:"connections"`
	Bytes       uint64 `json:"bytes"`
}

// InitialShare counts the connections of two subflows in a size class.
type InitialShare struct {
	Connections uint64     `json:"connections"`
	Alone       uint64     `json:"initial_alone"` // the initial subflow carried all
	Most        uint64     `json:"initial_most"`  // it carried more than half
	Shares      [21]uint64 `json:"by_twentieths"`
}

// Signals counts signals of a kind.
type Signals struct {
	Count    uint64 `json:"count"`
	Echoed   uint64 `json:"echoed"`
	Repeated uint64 `json:"repeated"`
	Followed uint64 `json:"followed"`
}

func (s Signals) plus(o Signals) Signals {
	return Signals{s.Count + o.Count, s.Echoed + o.Echoed, s.Repeated + o.Repeated, s.Followed + o.Followed}
}

// signalsOf counts a connection's signals by their kinds.
func signalsOf(r *track.Record) map[string]Signals {
	m := map[string]Signals{}
	for _, g := range r.Signals {
		s := Signals{Count: 1, Repeated: uint64(g.Repeats)}
		if g.Echo != nil {
			s.Echoed = 1
		}
		if g.Followed > 0 || g.Data > 0 {
			s.Followed = 1
		}
		m[g.Kind] = m[g.Kind].plus(s)
	}
	return m
}

// Add counts a connection.
func (t *Totals) Add(r *track.Record) {
	t.Connections++
	if r.Midway {
		t.Midway++
	}
	version := "unknown"
	if r.Version != nil {
		version = strconv.Itoa(*r.Version)
	}
	put(&t.Versions, version, 1)
	if r.Fallback != nil {
		put(&t.Fallbacks, r.Fallback.Cause, 1)
	}
	put(&t.Ends, r.End, 1)
	if len(r.Subflows) > 1 {
		put(&t.Shapes, r.Shape, 1)
	}
	for name, n := range r.Anomalies {
		put(&t.Anomalies, name, n)
	}
	t.addresses(r)
	size := r.FromClient + r.FromServer
	t.Bytes += size
	t.Size.Add(float64(size))
	t.Duration.Add(r.Duration)
	if size == 2 {
		t.Empty++
	}
	if r.Duration > 0 && size > 2 {
		t.Goodput.Add(float64(size) * 8 / r.Duration)
	}
	t.subflows(r)
	t.roundTrips(r, size)
	t.repeats(r, size)
	t.events(r)
	t.list(r)
}

func (t *Totals) addresses(r *track.Record) {
	first := r.Subflows[0]
	if t.Ports == nil {
		t.Ports = map[uint16]Traffic{}
		t.clients = map[netip.Addr]struct{}{}
		t.prefixes = map[netip.Prefix]struct{}{}
		t.fallen = map[netip.Addr]struct{}{}
	}
	if r.Fallback != nil && len(t.fallen) < maxAddresses {
		t.fallen[first.Client.Addr()] = struct{}{}
	}
	p := t.Ports[first.Server.Port()]
	p.Connections++
	p.Bytes += r.FromClient + r.FromServer
	t.Ports[first.Server.Port()] = p
	bits := 24
	if first.Client.Addr().Is6() {
		bits = 48
		t.IPv6++
	} else {
		t.IPv4++
	}
	for _, s := range r.Subflows {
		if len(t.clients) < maxAddresses {
			t.clients[s.Client.Addr()] = struct{}{}
		}
	}
	if prefix, err := first.Client.Addr().Prefix(bits); err == nil && len(t.prefixes) < maxAddresses {
		t.prefixes[prefix] = struct{}{}
	}
}

func (t *Totals) subflows(r *track.Record) {
	n := len(r.Subflows)
	put(&t.Subflows, n, 1)
	t.AllSubflows += uint64(n)
	t.MaxSubflows = max(t.MaxSubflows, n)
	for _, s := range r.Subflows {
		put(&t.States, s.State, 1)
		if s.HMAC == "wrong" {
			t.WrongHMAC++
		}
		if s.RTT != nil && s.RTTSamples > 0 {
			t.SubflowRTT.Add(*s.RTT)
		}
		if s.RTTChange != nil {
			t.RTTChange.Add(*s.RTTChange)
		}
		if s.Goodput > 0 {
			t.SubflowGoodput.Add(s.Goodput)
		}
	}
	t.joins(r)
	t.additional(r)
	t.initial(r)
}

// additional counts the established subflows besides the first, and how many of them carried no data.
func (t *Totals) additional(r *track.Record) {
	unused := false
	for _, s := range r.Subflows {
		if s.Initial || s.State == "refused" || s.State == "unanswered" || s.State == "half-open" {
			continue
		}
		t.Additional++
		if !s.Unused {
			continue
		}
		unused = true
		t.Unused++
		if s.UnusedBetter != nil {
			t.UnusedCompared++
			if *s.UnusedBetter {
				t.UnusedBetter++
			}
		}
	}
	if !unused {
		return
	}
	t.WithUnused++
	for i, limit := range []uint64{1000, 20000} {
		if r.FromClient+r.FromServer < limit {
			t.UnusedSize[i]++
		}
	}
}

// initial counts how much of a connection with two subflows the first one carried.
func (t *Totals) initial(r *track.Record) {
	if len(r.Subflows) != 2 || r.ViaInitial == nil {
		return
	}
	class := 0
	switch size := r.FromClient + r.FromServer; {
	case size > largeSize:
		class = 2
	case size >= smallSize:
		class = 1
	}
	c := &t.Initial[class]
	c.Connections++
	if *r.ViaInitial == 1 {
		c.Alone++
	}
	if *r.ViaInitial > 0.5 {
		c.Most++
	}
	c.Shares[int(*r.ViaInitial*20)]++
}

// joins counts the delays of subflows that came up.
func (t *Totals) joins(r *track.Record) {
	first := math.Inf(1)
	for _, s := range r.Subflows {
		if s.Initial || s.JoinDelay == nil || s.State == "refused" || s.State == "unanswered" {
			continue
		}
		t.Joins.Add(*s.JoinDelay)
		first = min(first, *s.JoinDelay)
		for i, limit := range joinLimits {
			if *s.JoinDelay <= limit {
				t.JoinsWithin[i]++
			}
		}
	}
	if !math.IsInf(first, 1) {
		t.FirstJoins.Add(first)
	}
}

func (t *Totals) roundTrips(r *track.Record, size uint64) {
	if size < rttSize || r.RTTSpread == nil {
		return
	}
	t.Spread.Add(*r.RTTSpread)
	if *r.RTTSpread <= 0.01 {
		t.Within10ms++
	}
	if *r.RTTSpread > 1 {
		t.Above1s++
	}
	class := 0
	for class < len(bestRTTs) && *r.BestRTT >= bestRTTs[class] {
		class++
	}
	t.SecondBest[class].Add(*r.SecondRTT)
}

func (t *Totals) repeats(r *track.Record, size uint64) {
	t.Reinjected += r.Reinjected
	t.Retransmitted += r.Retransmitted
	t.Reinjections += r.Reinjections
	for cause, n := range r.ReinjectedAfter {
		put(&t.ReinjectedAfter, cause, n)
	}
	if len(r.Subflows) > 1 && size > 0 {
		t.Several++
		if r.Reinjections > 0 {
			t.Reinjecting++
			t.ReinjectedShare.Add(float64(r.Reinjected) / float64(size))
		}
		if r.Retransmitted > 0 {
			t.Retransmitting++
			t.RepeatedShare.Add(float64(r.Retransmitted) / float64(size))
		}
	}
	for _, at := range r.ReinjectionTimes {
		t.ReinjectionAt[min(Bins-1, int(at*Bins))]++
	}
	for _, at := range r.RetransmissionTimes {
		t.RepeatAt[min(Bins-1, int(at*Bins))]++
	}
}

func (t *Totals) events(r *track.Record) {
	for _, h := range r.Handovers {
		put(&t.Handovers, h.Kind, 1)
		t.HandoverGaps.Add(h.Gap)
	}
	if t.Signals == nil {
		t.Signals = map[string]Signals{}
	}
	for kind, s := range signalsOf(r) {
		t.Signals[kind] = t.Signals[kind].plus(s)
	}
	for _, g := range r.Signals {
		if g.Echo != nil {
			t.EchoDelay.Add(*g.Echo)
		}
	}
	t.Stalls += uint64(r.WindowStalls)
	t.Stalled += r.WindowStalled
	if r.WindowStalls > 0 {
		t.StalledConns++
	}
	t.Blockages += uint64(r.Blockages)
	t.Blocked += r.Blocked
	if r.Blockages > 0 {
		t.BlockedConns++
	}
	if r.MaxFlight > 0 {
		t.MaxFlight.Add(float64(r.MaxFlight))
	}
	t.Idle.Add(r.Idle)
}

// Clients returns the numbers of client addresses and of their prefixes (/24, /48).
func (t *Totals) Clients() (addresses, prefixes int) { return len(t.clients), len(t.prefixes) }
