package track

// fallback follows whether a connection is still MPTCP.
type fallback struct {
	syn, plainSYN         bool // a SYN had MP_CAPABLE; one had not
	synAck, synAckCapable bool
	// Packets of each side after the SYNs, and those of them with MPTCP options.
	packets, mptcp [2]uint64

	fail         bool // MP_FAIL that ended no subflow
	failTime     int64
	infiniteTime int64
	// unmappedTime is the time at which each side began to send data without mapping. A later mapping resets it.
	unmappedTime [2]int64
}

// Fallback causes.
const (
	// CauseSYNACK: no MP_CAPABLE in the SYN+ACK. The server has no MPTCP, or a middlebox removed the option.
	CauseSYNACK = "no-capable-in-synack"
	// CauseSYN: the client repeated its SYN without MP_CAPABLE, as it does when SYNs with the option get no answer.
	CauseSYN = "syn-repeated-without-capable"
	// CauseACK: no MPTCP option in the third ACK nor in any other packet of the client.
	CauseACK = "no-capable-in-ack"
	// CauseRemoved: one side's data has no mappings any more, or never had.
	CauseRemoved = "options-removed"
	// CauseChecksum: MP_FAIL on a connection with checksums.
	CauseChecksum = "checksum"
	// CauseFail: MP_FAIL on a connection without checksums.
	CauseFail = "mp-fail"
	// CauseInfinite: an infinite mapping without MP_FAIL.
	CauseInfinite = "infinite-mapping"
)

// note counts a packet of the first subflow.
func (f *fallback) note(s *subflow, p *Packet, from Side) {
	if p.HasMPTCP {
		f.mptcp[from]++
	}
	if p.Cut {
		f.mptcp[from]++ // it may have had one
	}
	if s.synAck != 0 || !f.syn {
		f.packets[from]++
	}
	if p.HasDSS && p.DSS.Flags&4 != 0 {
		f.unmappedTime[from] = 0
	}
}

func (f *fallback) infinite(at int64) {
	if f.infiniteTime == 0 {
		f.infiniteTime = at
	}
}

// unmapped notes data without mapping. On a joined subflow, or beside other subflows, it ends its subflow only (RFC
// 8684, 3.7).
func (f *fallback) unmapped(at int64, on *subflow, from Side) {
	if f.unmappedTime[from] == 0 && on.index == 0 && on.alone() {
		f.unmappedTime[from] = at
	}
}

// alone reports whether no other subflow of the connection is alive.
func (s *subflow) alone() bool {
	for _, other := range s.c.subflows {
		if other != s && other.up && other.end == open {
			return false
		}
	}
	return true
}

// plain reports whether it is certain already that the connection is plain TCP.
func (f *fallback) plain() bool {
	return f.infiniteTime != 0 || f.synAck && !f.synAckCapable
}

// cause returns why the connection fell back, at its end; "": it did not.
func (f *fallback) cause(c *connection) (cause string, at int64) {
	switch {
	case f.syn && f.plainSYN && f.synAck && !f.synAckCapable:
		return CauseSYN, c.subflows[0].synAck
	case f.syn && f.synAck && !f.synAckCapable:
		return CauseSYNACK, c.subflows[0].synAck
	case f.fail && c.checksums:
		return CauseChecksum, f.failTime
	case f.fail:
		return CauseFail, f.failTime
	case f.infiniteTime != 0:
		return CauseInfinite, f.infiniteTime
	case f.syn && f.synAck && c.subflows[0].up && f.packets[Client] > 0 && f.mptcp[Client] == 0 && !(c.subflows[0].refused):
		return CauseACK, c.subflows[0].ack
	}
	for _, at := range f.unmappedTime {
		if at != 0 {
			return CauseRemoved, at
		}
	}
	return "", 0
}
