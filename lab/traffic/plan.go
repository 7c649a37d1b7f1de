package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Kind selects the traffic on the connection.
type Kind string

// The kinds of traffic.
const (
	Upload   Kind = "upload"   // messages from client to server
	Download Kind = "download" // messages from server to client
	Requests Kind = "requests" // a request each from the client, and the answer
)

// Kinds returns all kinds. The protocol sends a kind as its index in this list.
func Kinds() []Kind { return []Kind{Upload, Download, Requests} }

// Plan describes the traffic of one connection. The client sends its plan first.
type Plan struct {
	Kind     Kind
	Size     int // of each message or answer, bytes
	Count    int // of messages or requests
	Interval time.Duration
}

// Limits of a server. It rejects clients that ask for more.
const (
	maxSize  = 1 << 30
	maxCount = 1 << 20
	maxTime  = time.Hour // arrivals are 32 bits of microseconds
)

// wirePlan is the encoding of a Plan.
type wirePlan struct {
	Magic       uint32
	Kind        uint8
	Size, Count uint32
	Interval    int64 // ns
}

const magic = 0x64743031 // "dt01"

func (p Plan) check() error {
	switch {
	case !slices.Contains(Kinds(), p.Kind):
		return fmt.Errorf("%q is no kind of traffic; there are %q", p.Kind, Kinds())
	case p.Size < 1 || p.Size > maxSize:
		return fmt.Errorf("a size of %d bytes is not from 1 to %d", p.Size, maxSize)
	case p.Count < 1 || p.Count > maxCount:
		return fmt.Errorf("a count of %d is not from 1 to %d", p.Count, maxCount)
	case p.Interval <= 0 || p.Interval > maxTime/time.Duration(p.Count):
		return fmt.Errorf("%d times an interval of %v is not more than nothing and at most %v", p.Count, p.Interval, maxTime)
	}
	return nil
}

// end returns the longest duration of the traffic.
func (p Plan) end() time.Duration { return time.Duration(p.Count)*p.Interval + Patience }

func (p Plan) write(w io.Writer) error {
	kind := uint8(slices.Index(Kinds(), p.Kind))
	return binary.Write(w, binary.BigEndian, wirePlan{magic, kind, uint32(p.Size), uint32(p.Count), int64(p.Interval)})
}

func readPlan(r io.Reader) (Plan, error) {
	var w wirePlan
	if err := binary.Read(r, binary.BigEndian, &w); err != nil {
		return Plan{}, err
	}
	if w.Magic != magic {
		return Plan{}, errors.New("it is not a client of this program")
	}
	if int(w.Kind) >= len(Kinds()) {
		return Plan{}, fmt.Errorf("it asks for traffic of kind %d, which this program does not know", w.Kind)
	}
	p := Plan{Kinds()[w.Kind], int(w.Size), int(w.Count), time.Duration(w.Interval)}
	return p, p.check()
}
