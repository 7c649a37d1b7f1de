package track

import "net/netip"

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
	// RTTChange is the difference between the highest and the lowest mean of RTTOverTime, of the direction
	// that covers most of the path.
	RTTChange *float64 `json:"rtt_change,omitempty"`
	Goodput   float64  `json:"goodput"` // bit/s of new data while the subflow carried any
}

// Direction sums up the packets that one side sent on a subflow.
type Direction struct {
	Packets       uint64       `json:"packets"`
	Bytes         uint64       `json:"bytes"` // TCP payload, with all that was sent again
	NewData       uint64       `json:"new_data"`
	Retransmitted uint64       `json:"retransmitted"`
	Reinjected    uint64       `json:"reinjected"`
	OutOfOrder    uint64       `json:"out_of_order"` // segments
	RTT           *float64     `json:"rtt,omitempty"`
	MinRTT        *float64     `json:"rtt_min,omitempty"`
	MaxRTT        *float64     `json:"rtt_max,omitempty"`
	RTTOverTime   *RTTOverTime `json:"rtt_over_time,omitempty"`
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
		FromClient: s.half[Client].record(c.first), FromServer: s.half[Server].record(c.first),
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
	r.RTTChange = r.change()
	begin, end := s.used()
	if data := s.data(); data > 0 && end > begin {
		r.Goodput = float64(data) * 8 / seconds(end-begin)
	}
	return r
}

// change returns how much the round trip has changed over time, or nil if that is not known. A capture at the receiver
// of the data shows only the receiver's own delay.
func (s *Subflow) change() *float64 {
	for _, d := range []*Direction{&s.FromServer, &s.FromClient} {
		list := d.RTTOverTime.Periods()
		if d.RTT == nil || s.RTT == nil || *d.RTT < *s.RTT/2 || len(list) < 2 {
			continue
		}
		least, most := list[0].Mean, list[0].Mean
		for _, p := range list {
			least, most = min(least, p.Mean), max(most, p.Mean)
		}
		return pointer(most - least)
	}
	return nil
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

func (h *half) record(first int64) Direction {
	d := Direction{
		Packets: h.packets, Bytes: h.bytes, NewData: h.newBytes, Retransmitted: h.retransmitted, Reinjected: h.reinjected, OutOfOrder: h.disordered,
	}
	if h.rtt.Count > 0 {
		d.RTT, d.MinRTT, d.MaxRTT = pointer(h.rtt.Mean()/1e9), pointer(seconds(h.rtt.Min)), pointer(seconds(h.rtt.Max))
		d.RTTOverTime = h.rttOverTime.record(first)
	}
	return d
}
