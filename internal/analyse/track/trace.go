package track

// Kind of a segment in a Trace.
type Kind uint8

// Kinds of segments.
const (
	First Kind = iota
	Retransmitted
	Reinjected
)

// Trace holds the data that is plotted of the chosen connection.
type Trace struct {
	Segments   []Segment
	Acks       []Ack
	RoundTrips []RoundTrip
	Dropped    uint64 // that exceeded the bounds
}

// Segment is data on a subflow.
type Segment struct {
	Time    int64
	Start   uint64
	Length  uint32
	Subflow uint32
	From    Side
	Kind    Kind
}

// Ack is a data acknowledgement.
type Ack struct {
	Time   int64
	Number uint64
	Of     Side // that sent the data
}

// RoundTrip is a sample.
type RoundTrip struct {
	Time    int64
	Length  int64
	Subflow uint32
	Of      Side // that sent the data
}

// maxTrace bounds each list: some 100 MB together.
const maxTrace = 1 << 20

func (t *Trace) segment(at int64, s *subflow, from Side, start uint64, length uint32, kind Kind) {
	if n := len(t.Segments); n > 0 {
		last := &t.Segments[n-1]
		if last.Subflow == uint32(s.index) && last.From == from && last.Kind == kind && last.Start+uint64(last.Length) == start &&
			at-last.Time < millisecond && last.Length < joinLength {
			last.Length += length
			return
		}
	}
	if len(t.Segments) == maxTrace {
		t.Dropped++
		return
	}
	t.Segments = append(t.Segments, Segment{at, start, length, uint32(s.index), from, kind})
}

func (t *Trace) acknowledgement(at int64, _ *subflow, server bool, number uint64) {
	if len(t.Acks) < maxTrace {
		t.Acks = append(t.Acks, Ack{at, number, sideOf(server)})
	}
}

func (t *Trace) roundTrip(at int64, s *subflow, server bool, length int64) {
	if len(t.RoundTrips) < maxTrace {
		t.RoundTrips = append(t.RoundTrips, RoundTrip{at, length, uint32(s.index), sideOf(server)})
	}
}

func sideOf(server bool) Side {
	if server {
		return Server
	}
	return Client
}
