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

// Subflow describes a subflow.
type Subflow struct {
	Client    netip.AddrPort `json:"client"`
	Server    netip.AddrPort `json:"server"`
	Initial   bool           `json:"initial"`
	OpenedBy  string         `json:"opened_by"`
	State     string         `json:"state"`
	HMAC      string         `json:"hmac,omitempty"` // verified, wrong
	Backup    bool           `json:"backup"`
	JoinDelay *float64       `json:"join_delay,omitempty"` // from the connection's first packet to the join's SYN
	Began     float64        `json:"began"`
	Ended     *float64       `json:"ended,omitempty"`
	EndedBy   string         `json:"ended_by,omitempty"`
	Reset     *int           `json:"reset_reason,omitempty"` // of MP_TCPRST
	Failed    bool           `json:"mp_fail"`
	Unused    bool           `json:"unused"` // established, and no data
	// Of an unused subflow: whether its round trip was shorter than that of the best that was used.
	UnusedBetter *bool `json:"unused_better_rtt,omitempty"`

	FromClient   Direction `json:"from_client"`
	FromServer   Direction `json:"from_server"`
	RTT          *float64  `json:"rtt,omitempty"` // mean of both halves; see docs/analyse.md
	HandshakeRTT *float64  `json:"rtt_handshake,omitempty"`
	RTTSamples   uint64    `json:"rtt_samples"`
	Goodput      float64   `json:"goodput"` // bit/s of new data while the subflow carried any
}

// Direction sums up the packets that one side sent on a subflow.
type Direction struct {
	Packets       uint64   `json:"packets"`
	Bytes         uint64   `json:"bytes"` // TCP payload, with all that was sent again
	NewData       uint64   `json:"new_data"`
	Retransmitted uint64   `json:"retransmitted"`
	Reinjected    uint64   `json:"reinjected"`
	OutOfOrder    uint64   `json:"out_of_order"` // segments
	RTT           *float64 `json:"rtt,omitempty"`
	MinRTT        *float64 `json:"rtt_min,omitempty"`
	MaxRTT        *float64 `json:"rtt_max,omitempty"`
}

// Handover is the move of a connection's data from a subflow that ended to another.
type Handover struct {
	At   float64 `json:"at"` // the first data on the other subflow
	From int     `json:"from"`
	To   int     `json:"to"`
	Gap  float64 `json:"gap"`  // without new data
	Kind string  `json:"kind"` // break-before-make, make-before-break
	Why  string  `json:"why"`  // fin, reset, removed, silent
}

// Signal is an ADD_ADDR, REMOVE_ADDR or MP_PRIO.
type Signal struct {
	At      float64     `json:"at"`
	Kind    string      `json:"kind"`
	From    string      `json:"from"`
	IDs     []int       `json:"address_ids"`
	Address *netip.Addr `json:"address,omitempty"`
	Port    uint16      `json:"port,omitempty"`
	Backup  bool        `json:"backup,omitempty"`
	HMAC    string      `json:"hmac,omitempty"`
	Echo    *float64    `json:"echo_delay,omitempty"`
	Repeats int         `json:"repeats"`
	// What followed: joins to the address, subflows that ended, new data on the subflow.
	Followed int      `json:"followed"`
	Delay    *float64 `json:"followed_delay,omitempty"`
	Data     uint64   `json:"data_after,omitempty"`
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

// countUnmapped counts bytes without mapping as data. On a connection that fell back they are.
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

func (s *subflow) began() int64 {
	if s.syn != 0 {
		return s.syn
	}
	if s.synAck != 0 {
		return s.synAck
	}
	return s.last
}

func (s *subflow) record(c *connection) Subflow {
	r := Subflow{
		Client:  netip.AddrPortFrom(Addr(s.address[Client]), s.port[Client]),
		Server:  netip.AddrPortFrom(Addr(s.address[Server]), s.port[Server]),
		Initial: !s.join && s.index == 0, OpenedBy: s.opener.String(), State: s.state(), Backup: s.backup, Failed: s.failed,
		FromClient: s.half[Client].record(), FromServer: s.half[Server].record(),
		RTTSamples: s.half[Client].rtt.Count + s.half[Server].rtt.Count,
	}
	if s.join && s.syn != 0 {
		r.Began = seconds(s.syn - c.first)
		if !c.midway {
			r.JoinDelay = pointer(r.Began)
		}
	}
	if s.end != open {
		r.Ended, r.EndedBy = pointer(seconds(s.endTime-c.first)), s.endBy.String()
	}
	if s.reason >= 0 {
		r.Reset = pointer(s.reason)
	}
	switch {
	case s.verified[Client] == wrong || s.verified[Server] == wrong:
		r.HMAC = "wrong"
	case s.verified[Client] == right && s.verified[Server] == right:
		r.HMAC = "verified"
	}
	r.Unused = s.up && s.half[Client].bytes+s.half[Server].bytes == 0
	client, hasClient := s.handshakeTime(Client)
	server, hasServer := s.handshakeTime(Server)
	if hasClient && hasServer {
		r.HandshakeRTT = pointer(seconds(client + server))
	}
	if n := s.half[Client].rtt.Count; n > 0 {
		client, hasClient = int64(s.half[Client].rtt.Mean()), true
	}
	if n := s.half[Server].rtt.Count; n > 0 {
		server, hasServer = int64(s.half[Server].rtt.Mean()), true
	}
	if hasClient && hasServer {
		r.RTT = pointer(seconds(client + server))
	}
	begin, end := s.used()
	if data := s.data(); data > 0 && end > begin {
		r.Goodput = float64(data) * 8 / seconds(end-begin)
	}
	return r
}

// used returns the times of the first and the last new data.
func (s *subflow) used() (begin, end int64) {
	for i := range s.half {
		h := &s.half[i]
		if h.firstData != 0 && (begin == 0 || h.firstData < begin) {
			begin = h.firstData
		}
		end = max(end, h.lastNew)
	}
	return begin, end
}

func (s *subflow) state() string {
	switch {
	case s.refused:
		return "refused"
	case !s.up && s.synAck == 0 && s.syn != 0:
		return "unanswered"
	case !s.up:
		return "half-open"
	case s.end == reset:
		return "reset"
	case s.half[Client].fin && s.half[Server].fin:
		return "closed"
	case s.end == finished:
		return "closing"
	}
	return "established"
}

func (h *half) record() Direction {
	d := Direction{
		Packets: h.packets, Bytes: h.bytes, NewData: h.newBytes, Retransmitted: h.retransmitted, Reinjected: h.reinjected, OutOfOrder: h.disordered,
	}
	if h.rtt.Count > 0 {
		d.RTT, d.MinRTT, d.MaxRTT = pointer(h.rtt.Mean()/1e9), pointer(seconds(h.rtt.Min)), pointer(seconds(h.rtt.Max))
	}
	return d
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

// compareRTTs fills in the comparison of the subflows' round trips.
func (r *Record) compareRTTs() {
	var means []float64
	for _, s := range r.Subflows {
		if s.RTT != nil && s.RTTSamples > 0 {
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

// handovers finds subflows that carried data and ended before the connection's data did.
func (c *connection) handovers() (list []Handover) {
	for _, s := range c.subflows {
		_, last := s.used()
		if last == 0 || s.nextOther == 0 || s.otherIndex < 0 {
			continue
		}
		why, ended := s.gone()
		if why == "" {
			continue
		}
		to := c.subflows[s.otherIndex]
		// Data must have come on the other subflow after this one ended, or instead of it.
		if _, other := to.used(); other <= ended {
			continue
		}
		kind := "make-before-break"
		if began := to.began(); began > last && to.join {
			kind = "break-before-make"
		}
		list = append(list, Handover{
			At: seconds(s.nextOther - c.first), From: s.index, To: to.index, Gap: seconds(s.nextOther - last), Kind: kind, Why: why,
		})
	}
	slices.SortStableFunc(list, func(a, b Handover) int { return int(1e9 * (a.At - b.At)) })
	return list
}

// silence is the time, in nanoseconds, after which a subflow without an answer to its data counts as dead.
const silence = second

// gone returns why a subflow ended, and when; "": it lives.
func (s *subflow) gone() (why string, at int64) {
	switch {
	case s.removed != 0 && (s.end == open || s.removed <= s.endTime):
		return "removed", s.removed
	case s.end != open:
		return s.end.String(), s.endTime
	}
	for side := range s.half {
		h, peer := &s.half[side], &s.half[Side(side).other()]
		// Data was sent again, and nothing has come since, while the connection went on for long enough.
		if h.bytes > 0 && h.ackedLess() && h.lastRe > peer.last && s.c.last-peer.last >= silence {
			return "silent", h.lastNew
		}
	}
	return "", 0
}

func (g *signal) record(c *connection) Signal {
	r := Signal{At: seconds(g.at - c.first), Kind: g.kind, From: g.from.String(), Backup: g.backup, Repeats: g.repeats, Port: g.port}
	for _, id := range g.ids {
		r.IDs = append(r.IDs, int(id))
	}
	r.HMAC = [...]string{"", "verified", "wrong"}[g.hmac]
	if g.address.IsValid() {
		r.Address = &g.address
	}
	if g.echoed != 0 {
		r.Echo = pointer(seconds(g.echoed - g.at))
	}
	var delay int64 = -1
	for _, s := range c.subflows {
		switch g.kind {
		case AddAddr:
			if s.join && s.syn >= g.at && s.opener == g.from.other() && Addr(s.address[g.from]) == g.address && (g.port == 0 || s.port[g.from] == g.port) {
				r.Followed++
				if delay < 0 {
					delay = s.syn - g.at
				}
			}
		case RemoveAddr:
			if s.removed == g.at && s.end != open {
				r.Followed++
				delay = max(delay, s.endTime-g.at)
			}
		}
	}
	if g.kind == Priority {
		r.Data = g.on.data() - g.data
	}
	if delay >= 0 {
		r.Delay = pointer(seconds(delay))
	}
	return r
}
