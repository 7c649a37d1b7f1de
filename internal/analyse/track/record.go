package track

import (
	"net/netip"
	"slices"
	"time"
)

// Record describes a connection that ended. Times are in seconds; those of events count from its first packet.
type Record struct {
	Number   uint32    `json:"number"`
	Began    time.Time `json:"began"`
	Duration float64   `json:"duration"`
	Midway   bool      `json:"midway"` // it began before the capture
	Version  *int      `json:"version,omitempty"`
	Tokens   []uint32  `json:"tokens,omitempty"`
	// Bytes of data at the connection's level, by the side that sent them, with one for a DATA_FIN.
	FromClient uint64 `json:"from_client"`
	FromServer uint64 `json:"from_server"`
	Packets    uint64 `json:"packets"`
	Checksums  bool   `json:"checksums"`

	End      string    `json:"end"`
	Fallback *Fallback `json:"fallback,omitempty"`
	Shape    string    `json:"shape"`
	Subflows []Subflow `json:"subflows"`

	RTTSpread  *float64 `json:"rtt_spread,omitempty"`      // between the means of the slowest and the quickest subflow
	BestRTT    *float64 `json:"rtt_best,omitempty"`        // mean
	SecondRTT  *float64 `json:"rtt_second_best,omitempty"` // mean
	ViaInitial *float64 `json:"initial_share,omitempty"`   // of the data; only with two and more subflows

	Retransmitted   uint64            `json:"retransmitted"` // bytes
	Reinjected      uint64            `json:"reinjected"`    // bytes
	Reinjections    uint64            `json:"reinjections"`  // segments
	ReinjectedAfter map[string]uint64 `json:"reinjections_after,omitempty"`
	// When data was sent again, as shares of the duration.
	RetransmissionTimes []float64 `json:"-"`
	ReinjectionTimes    []float64 `json:"-"`

	Handovers []Handover `json:"handovers,omitempty"`
	Signals   []Signal   `json:"signals,omitempty"`

	WindowStalls  int     `json:"window_stalls"`
	WindowStalled float64 `json:"window_stalled"`
	Blockages     int     `json:"head_of_line_blockages"`
	Blocked       float64 `json:"head_of_line_blocked"`
	MaxFlight     uint64  `json:"max_in_flight"`
	Idle          float64 `json:"idle"`        // sum of gaps of a second and more
	LongestGap    float64 `json:"longest_gap"` // between two packets

	Anomalies map[string]uint64 `json:"anomalies,omitempty"`

	Trace *Trace `json:"-"`
}

// Fallback describes a connection's fallback to plain TCP: its cause, and its time in seconds after the first packet.
type Fallback struct {
	Cause string  `json:"cause"`
	At    float64 `json:"at"`
}

// Ends of connections.
const (
	EndDataFIN   = "data-fin"
	EndFastClose = "fastclose"
	EndReset     = "reset"
	EndFIN       = "fin" // of plain TCP
	EndIdle      = "inactivity"
	EndEvicted   = "too-many-connections"
	EndCapture   = "capture"
)

func (c *connection) end(now, idle int64) string {
	first := c.subflows[0]
	switch {
	case c.fastClose:
		return EndFastClose
	case c.streams[Client].finSeen && c.streams[Server].finSeen:
		return EndDataFIN
	case c.fallback.plain() && first.half[Client].fin && first.half[Server].fin:
		return EndFIN
	case c.done() && slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.end == reset }):
		return EndReset
	case c.done():
		return EndFIN
	case c.evicted:
		return EndEvicted
	case c.idle || now-c.last > idle:
		return EndIdle
	}
	return EndCapture
}

// seconds converts a difference of times.
func seconds(ns int64) float64 { return float64(max(0, ns)) / 1e9 }

func pointer[T any](v T) *T { return &v }

// Addr returns an address of a Summary.
func Addr(a [16]byte) netip.Addr { return netip.AddrFrom16(a).Unmap() }

func (c *connection) record(now, idle int64) *Record {
	r := &Record{
		Number: c.number, Began: time.Unix(0, c.first).UTC(), Duration: seconds(c.last - c.first), Midway: c.midway,
		Tokens: c.tokens, Packets: c.packets, Checksums: c.checksums, End: c.end(now, idle),
		Idle: float64(c.idleTime) / 1e9, LongestGap: float64(c.longestGap) / 1e9, Trace: c.trace,
	}
	if c.versionSet {
		r.Version = pointer(int(c.version))
	}
	cause, at := c.fallback.cause(c)
	if cause != "" {
		r.Fallback = &Fallback{cause, seconds(at - c.first)}
		c.countUnmapped()
	}
	for side, out := range c.streams {
		*[2]*uint64{&r.FromClient, &r.FromServer}[side] = out.size()
		r.Reinjected += out.reinjected
		r.Reinjections += out.reinjection
		r.WindowStalls += out.stalls
		r.WindowStalled += float64(out.stalled) / 1e9
		r.Blockages += out.blockages
		r.Blocked += float64(out.blocked) / 1e9
		r.MaxFlight = max(r.MaxFlight, out.maxFlight)
	}
	for _, s := range c.subflows {
		r.Subflows = append(r.Subflows, s.record(c))
		r.Retransmitted += s.half[Client].retransmitted + s.half[Server].retransmitted
	}
	r.Shape = shape(r.Subflows)
	r.compareRTTs()
	r.useOfSubflows()
	for i, n := range c.repeats.causes {
		if n > 0 {
			if r.ReinjectedAfter == nil {
				r.ReinjectedAfter = map[string]uint64{}
			}
			r.ReinjectedAfter[Cause(i).String()] = n
		}
	}
	r.RetransmissionTimes = c.normalised(retransmission)
	r.ReinjectionTimes = c.normalised(reinjection)
	r.Handovers = c.handovers()
	for _, g := range c.signals {
		r.Signals = append(r.Signals, g.record(c))
	}
	r.Anomalies = c.anomaly.record(r.Fallback != nil)
	return r
}

// countUnmapped counts bytes without mapping as data, which they are on a connection that fell back.
func (c *connection) countUnmapped() {
	for side := range c.streams {
		c.streams[side].fresh += c.streams[side].unmapped
		for _, s := range c.subflows {
			s.half[side].newBytes += s.half[side].unmapped
		}
	}
}

// size is the number of bytes from the first to the last, and one for a DATA_FIN.
func (s *stream) size() uint64 {
	if s.finSeen {
		return s.fresh + 1
	}
	return s.fresh
}

func (c *connection) normalised(kind repetition) (times []float64) {
	length := c.last - c.first
	for _, at := range c.repeats.times[kind] {
		if length > 0 {
			times = append(times, min(1, seconds(at-c.first)/seconds(length)))
		}
	}
	return times
}

func (a *anomalies) record(fellBack bool) map[string]uint64 {
	m := map[string]uint64{}
	for name, n := range map[string]uint64{
		"duplicated-packets": a.duplicates, "wrong-hmac": a.wrongHMAC, "unknown-token": a.unknownToken, "malformed-option": a.badOption,
		"options-cut": a.cut, "not-captured": a.lostByCapture, "conflicting-keys": a.conflict,
	} {
		if n > 0 {
			m[name] = n
		}
	}
	if a.unmapped > 0 && !fellBack {
		m["data-without-mapping"] = a.unmapped
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// shape names the path manager that the client seems to use: single, fullmesh or ndiffports.
func shape(subflows []Subflow) string {
	if len(subflows) < 2 {
		return "single"
	}
	for _, s := range subflows[1:] {
		if s.Client.Addr() != subflows[0].Client.Addr() || s.Server.Addr() != subflows[0].Server.Addr() {
			return "fullmesh"
		}
	}
	return "ndiffports"
}

// fewestSamples is the least number of samples of a subflow whose mean round trip is compared, as in the scripts of the
// thesis (difference_rtt_sfs.py of mptcp-analysis-scripts).
const fewestSamples = 3

// compareRTTs fills in the comparison of the subflows' round trips.
func (r *Record) compareRTTs() {
	var means []float64
	for _, s := range r.Subflows {
		if s.RTT != nil && s.RTTSamples >= fewestSamples {
			means = append(means, *s.RTT)
		}
	}
	slices.Sort(means)
	if len(means) > 0 {
		r.BestRTT = &means[0]
	}
	if n := len(means); n > 1 {
		r.SecondRTT = &means[1]
		r.RTTSpread = pointer(means[n-1] - means[0])
	}
}

// useOfSubflows fills in how the data is spread.
func (r *Record) useOfSubflows() {
	var all, initial uint64
	best := -1.0
	established := 0
	for i := range r.Subflows {
		s := &r.Subflows[i]
		data := s.FromClient.NewData + s.FromServer.NewData
		all += data
		if s.Initial {
			initial += data
		}
		if s.State != "refused" && s.State != "unanswered" {
			established++
		}
		if !s.Unused && s.RTT != nil && (best < 0 || *s.RTT < best) {
			best = *s.RTT
		}
	}
	if established > 1 && all > 0 && !r.Midway {
		r.ViaInitial = pointer(float64(initial) / float64(all))
	}
	for i := range r.Subflows {
		if s := &r.Subflows[i]; s.Unused && s.RTT != nil && best >= 0 {
			s.UnusedBetter = pointer(*s.RTT < best)
		}
	}
}
