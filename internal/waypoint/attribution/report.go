package attribution

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/printable"
)

// FaultKind classifies how a log differs from what its waypoint wrote.
type FaultKind string

// The kinds. A person who changes a log can make one kind look like another.
const (
	Changed      FaultKind = "changed"
	Missing      FaultKind = "missing"
	Added        FaultKind = "added"
	Reordered    FaultKind = "reordered"
	Truncated    FaultKind = "truncated"
	Foreign      FaultKind = "another log"
	BadSignature FaultKind = "bad signature"
	BadStatement FaultKind = "bad statement"
)

// Fault is a place where a log differs from what its waypoint wrote.
type Fault struct {
	Kind  FaultKind
	Place string // file and line
	Text  string
}

// maxListed limits the list of findings of one kind, because every line of a damaged log may cause one.
const maxListed = 50

// Span is a range of line numbers in the log, including both ends.
type Span struct{ First, Last uint64 }

func (s Span) String() string {
	if s.First == s.Last {
		return fmt.Sprintf("line %d", s.First)
	}
	return fmt.Sprintf("lines %d to %d", s.First, s.Last)
}

// Part is a range of lines of one log. All parts belong to one waypoint, unless files of several were given.
type Part struct {
	Waypoint string
	Span
}

// Head is a line that the waypoint has signed. With a noted head one can later check that the log still contains it, and
// therefore everything before it.
type Head struct {
	N    uint64
	Hash string // SHA-256 of the line
}

func (h Head) String() string { return fmt.Sprintf("%d:%s", h.N, h.Hash) }

// ParseHead parses a head that String returned.
func ParseHead(text string) (Head, error) {
	number, sum, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	var h hash
	if err == nil {
		err = h.UnmarshalText([]byte(sum))
	}
	if err != nil {
		return Head{}, fmt.Errorf("%q is not a head as dcol log verify prints it, such as 4711:e3b0c442… with 64 digits", text)
	}
	return Head{N: n, Hash: h.String()}, nil
}

// Report holds the findings of Verify.
type Report struct {
	Collective, Waypoint string
	Began, From, To      time.Time // the log; its first and last line
	Lines                uint64
	Proven               []Part // covered by their waypoint's signatures
	Unsigned             uint64 // lines at the end that are not covered yet
	Half                 string // the place of an incomplete last line
	Closed               bool   // the last line closes the log
	Head                 Head   // the last
	HeadTime             time.Time
	Sessions             int
	Flows                int // lines about connections
	FlowsByName          int // those without a session
	Faults               []Fault
	MoreFaults           int // that are not listed
	Notes                []string
	moreNotes            int
	of                   string // the waypoint of the present log
}

// Clean reports whether there are no faults.
func (r *Report) Clean() bool { return len(r.Faults) == 0 }

// Complete reports whether all lines are proven: there are no faults, and no unsigned or incomplete lines.
func (r *Report) Complete() bool { return r.Clean() && r.Unsigned == 0 && r.Half == "" }

func (r *Report) fault(kind FaultKind, place, text string) {
	if len(r.Faults) == maxListed {
		r.MoreFaults++
		return
	}
	r.Faults = append(r.Faults, Fault{kind, place, text})
}

func (r *Report) missing(place string, s Span) {
	r.fault(Missing, place, fmt.Sprintf("%v should stand before this one", s))
}

func (r *Report) note(format string, args ...any) {
	if len(r.Notes) == maxListed {
		r.moreNotes++
		return
	}
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *Report) prove(s Span) {
	p := Part{r.of, s}
	if last := len(r.Proven) - 1; last >= 0 && r.Proven[last].Waypoint == p.Waypoint && r.Proven[last].Last+1 == p.First {
		r.Proven[last].Last = p.Last
		return
	}
	r.Proven = append(r.Proven, p)
}

// Write writes, in words, what is proven and what is not.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	say := func(format string, args ...any) { b.WriteString(printable.Text(fmt.Sprintf(format, args...)) + "\n") }
	if r.Waypoint != "" {
		say("The log of waypoint %s in %q: %d lines, from %s to %s.", r.Waypoint, r.Collective, r.Lines, stamp(r.From), stamp(r.To))
	}
	for _, f := range r.Faults {
		say("FAULT: %s, %s: %s.", f.Kind, f.Place, f.Text)
	}
	if r.MoreFaults > 0 {
		say("FAULT: %d more.", r.MoreFaults)
	}
	for _, n := range r.Notes {
		say("Note: %s.", n)
	}
	if r.moreNotes > 0 {
		say("Note: %d more.", r.moreNotes)
	}
	r.sayProven(say)
	r.sayEnd(say)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) sayProven(say func(string, ...any)) {
	var proven []string
	for i, p := range r.Proven {
		if i == maxListed {
			proven = append(proven, fmt.Sprintf("%d more such parts", len(r.Proven)-i))
			break
		}
		if i+1 < len(r.Proven) && r.Proven[i+1].Waypoint == p.Waypoint {
			proven = append(proven, p.String())
			continue
		}
		proven = append(proven, fmt.Sprintf("%v are as %s wrote them", p, p.Waypoint))
	}
	switch {
	case len(proven) == 0:
		say("Not proven: the whole log. It has no valid signature of the waypoint.")
	case r.Clean():
		say("Proven: %s, signed on %s.", strings.Join(proven, ", "), stamp(r.HeadTime))
		say("Proven: %d sessions were made by the named members, by their signatures.", r.Sessions)
	default:
		say("Proven, except for the faults: %s, signed on %s.", strings.Join(proven, ", "), stamp(r.HeadTime))
	}
	say("Of %d lines on connections, %d name the session that allowed it, and %d only the member.", r.Flows, r.Flows-r.FlowsByName, r.FlowsByName)
}

func (r *Report) sayEnd(say func(string, ...any)) {
	if r.Unsigned > 0 {
		say("Not proven: the last %d lines, which no signature covers yet. An agent signs once a minute, and when it stops.", r.Unsigned)
	}
	switch {
	case r.Half != "":
		say("Not proven: %s, an incomplete line. It is being written, a crash left it, or the file was cut there.", r.Half)
	case r.Closed:
		say("The log was closed when its agent stopped.")
	default:
		say("The log is not closed: its agent runs, it has crashed, or lines at the end were cut off.")
	}
	if r.Head.Hash != "" {
		say("Head: %v", r.Head)
	}
}
