package attribution

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Authority returns the owner of a chain of certificates if it was valid at that time.
type Authority func(chain [][]byte, at time.Time) (Signer, error)

// Signer is a member, as named in its certificate.
type Signer struct {
	Name, Serial, Collective string
	Key                      ed25519.PublicKey
}

// clockStep is by how much times must go back to cause a note: entries are not written in the exact order of their
// times.
const clockStep = time.Minute

// Verify verifies a log. Its files may be in any order. Errors are those of reading them.
func Verify(files []File, authority Authority, known ...Head) (*Report, error) {
	v := &verifier{authority: authority, report: &Report{}, sessions: make(map[wire.SessionID]seen), absent: make(map[wire.SessionID]bool), sums: make(map[string]*summarised)}
	for _, h := range known {
		v.known = append(v.known, knownHead{Head: h})
	}
	if err := eachLine(files, v.read); err != nil {
		return nil, err
	}
	v.end()
	return v.report, nil
}

// verifier reads the lines once, in order.
type verifier struct {
	authority Authority
	known     []knownHead
	report    *Report
	order
	of       *line // the first line of the log, which names its owner
	certs    [][]byte
	sessions map[wire.SessionID]seen
	absent   map[wire.SessionID]bool
	time     time.Time // of the previous line
	half     *text     // an incomplete line
	sums     map[string]*summarised
}

// summarised adds up a member's summaries.
type summarised struct {
	lines    int
	from, to time.Time
}

// knownHead is a head that the log must contain.
type knownHead struct {
	Head
	found bool
	other string // place of a different line with the same number
}

// seen describes a session that the log has shown.
type seen struct {
	member   string
	evidence hash // hash of its line
}

func (v *verifier) read(t *text) {
	if v.half != nil {
		v.report.fault(Truncated, v.half.place(), "the line has no newline, but other lines follow")
		v.skip(v.half)
		v.half = nil
	}
	if !t.whole {
		half := *t
		half.bytes = bytes.Clone(t.bytes)
		v.half = &half
		return
	}
	v.report.Lines++
	if t.line == nil {
		v.report.fault(Changed, t.place(), "the line cannot be understood")
		v.skip(t)
		return
	}
	if t.line.Event == fileBegan {
		v.begin(t)
	} else if t.number == 1 {
		v.report.fault(Missing, t.place(), "the file does not begin with the line that names the log's owner")
	}
	if !v.follow(t, v.report) {
		return // not in order, so ignore its content
	}
	v.say(t)
}

// begin handles a file's first line. The file may belong to another log.
func (v *verifier) begin(t *text) {
	l, r := t.line, v.report
	if v.of == nil {
		r.Collective, r.Waypoint, r.Began = l.Collective, l.Waypoint, l.Began
		if l.N > 0 {
			r.note("the log begins at line %d: older files are missing", l.N)
		}
	} else if v.of.Log != l.Log {
		if l.Collective != r.Collective || l.Waypoint != r.Waypoint {
			r.fault(Foreign, t.place(), fmt.Sprintf("this is the log of %s in %q", l.Waypoint, l.Collective))
		} else {
			r.note("%s: another log of %s begins, of %s; it has no connection to the previous one", t.place(), l.Waypoint, stamp(l.Began))
		}
		v.endSegment(r)
		v.order = order{}
	} else if l.Collective != v.of.Collective || l.Waypoint != v.of.Waypoint || !l.Began.Equal(v.of.Began) {
		r.fault(Changed, t.place(), "the line names another owner than the first line")
	}
	if l.Format > format {
		r.note("%s: written by a newer dcol (format %d)", t.place(), l.Format)
	}
	of := *l
	v.of, r.of = &of, l.Waypoint
}

// say checks the content of a line.
func (v *verifier) say(t *text) {
	l, r := t.line, v.report
	if l.Time.Before(v.time.Add(-clockStep)) {
		r.note("%s: the waypoint's clock went back, from %s to %s", t.place(), stamp(v.time), stamp(l.Time))
	}
	v.time = l.Time
	if r.From.IsZero() {
		r.From = l.Time
	}
	r.To = l.Time
	r.Closed = l.Event == logClosed
	switch l.Event {
	case headSigned, logClosed:
		v.head(t)
	case sessionShown:
		v.session(t)
	case entriesLost:
		r.note("%s: %d entries were lost here: they could not be written", t.place(), l.Lost)
	case EntriesSummarised:
		v.summarised(t)
	case logResumed:
		if l.Unclean {
			r.note("%s: the previous agent had crashed", t.place())
		}
		if l.DroppedBytes > 0 {
			r.note("%s: an incomplete line was removed before, %d bytes that a crash had left", t.place(), l.DroppedBytes)
		}
	case FlowOpened, FlowFound, MappingGranted, AdmissionGranted, FlowClosed:
		v.attributed(t)
	}
	for i := range v.known {
		switch h := &v.known[i]; {
		case h.N != l.N:
		case h.Hash == hashOf(t.bytes).String():
			h.found = true
		default:
			h.other = t.place()
		}
	}
}

// head checks the waypoint's signature.
func (v *verifier) head(t *text) {
	l, r := t.line, v.report
	if len(l.Chain) > 0 {
		v.certs = l.Chain
	}
	if v.of == nil {
		return // already a fault
	}
	bad := func(text string) { r.fault(BadSignature, t.place(), "the waypoint's signature: "+text) }
	if again := l.encode(nil); !bytes.Equal(again, t.bytes) {
		bad("the line was written by something else")
		return
	}
	who, err := v.authority(v.certs, l.Time)
	switch {
	case err != nil:
		bad(err.Error())
	case who.Name != v.of.Waypoint || who.Collective != v.of.Collective:
		bad(fmt.Sprintf("it is of %s in %q, but this is the log of %s in %q", who.Name, who.Collective, v.of.Waypoint, v.of.Collective))
	case !ed25519.Verify(who.Key, l.signed(), l.Signature):
		bad("it is not one of these lines")
	default:
		v.signed(l.N)
		r.Head = Head{N: l.N, Hash: hashOf(t.bytes).String()}
		r.HeadTime = l.Time
	}
}

// session checks the member's signature over its session.
func (v *verifier) session(t *text) {
	l, r := t.line, v.report
	if v.of == nil {
		return
	}
	bad := func(format string, args ...any) {
		r.fault(BadStatement, t.place(), fmt.Sprintf("session %v: ", l.Session)+fmt.Sprintf(format, args...))
	}
	s := l.proof(v.of)
	evidence := s.evidence(s.Opened)
	now := seen{l.Member, hashOf(evidence.encode(nil))}
	if had, again := v.sessions[l.Session]; again {
		if had != now {
			bad("its evidence differs from before")
		}
		return
	}
	v.sessions[l.Session] = now
	r.Sessions++
	if err := s.Check(v.authority); err != nil {
		bad("%v", err)
	} else if l.Time.Before(s.Opened.Add(-clockStep)) {
		r.note("%s: the session was opened later than this, at %s, according to the log", t.place(), stamp(s.Opened))
	}
}

// Check returns an error if the session is not proven to be its member's.
func (s *Session) Check(authority Authority) error {
	who, err := authority(s.Chain, s.Opened)
	switch {
	case err != nil:
		return fmt.Errorf("the member's certificate: %w", err)
	case who.Name != s.Member || who.Serial != s.Serial || who.Collective != s.Collective:
		return fmt.Errorf("the line names %s in %q (serial %s), but the certificate is that of %s in %q (serial %s)",
			s.Member, s.Collective, s.Serial, who.Name, who.Collective, who.Serial)
	case !s.SignedBy(who.Key, s.Signature):
		return fmt.Errorf("%s has not signed this statement: it belongs to another session, waypoint or time, or was changed", s.Member)
	case s.Time.Sub(s.Opened).Abs() > wire.MaxClockOff:
		return fmt.Errorf("the statement is from %s, but the session from %s", stamp(s.Time), stamp(s.Opened))
	}
	return nil
}

// attributed checks that a line about a member refers to a session that the member has signed.
func (v *verifier) attributed(t *text) {
	l, r := t.line, v.report
	if l.Event == FlowClosed || l.Event == FlowOpened || l.Event == FlowFound {
		r.Flows++
		if l.Session.IsZero() {
			r.FlowsByName++
		}
	}
	if l.Session.IsZero() {
		return
	}
	switch s, shown := v.sessions[l.Session]; {
	case !shown && (v.of == nil || v.absent[l.Session]): // already reported
	case !shown:
		v.absent[l.Session] = true
		r.fault(BadStatement, t.place(), fmt.Sprintf("the log lacks session %v, in which %s is said to have caused this", l.Session, l.Member))
	case s.member != l.Member:
		r.fault(BadStatement, t.place(), fmt.Sprintf("session %v belongs to %s, but the line names %s", l.Session, s.member, l.Member))
	}
}

// summarised adds up the lines that the log only summarises.
func (v *verifier) summarised(t *text) {
	v.attributed(t)
	sum := v.sums[t.line.Member]
	if sum == nil {
		sum = &summarised{from: t.line.Opened}
		v.sums[t.line.Member] = sum
	}
	sum.lines += t.line.Summarised
	sum.to = t.line.Time
}

func (v *verifier) end() {
	r := v.report
	for _, member := range slices.Sorted(maps.Keys(v.sums)) {
		s := v.sums[member]
		r.note("%d lines about %s, from %s to %s, exist only as a summary: it had used up its share of the log", s.lines, member, stamp(s.from), stamp(s.to))
	}
	if v.half != nil {
		r.Half, r.Closed = v.half.place(), false
	}
	v.settle(r)
	r.Unsigned = v.unsigned()
	v.endSegment(r)
	if v.of == nil && len(r.Faults) == 0 {
		r.fault(Missing, "the log", "it is empty")
	}
	for _, h := range v.known {
		switch {
		case h.found:
		case h.other != "":
			r.fault(Changed, h.other, fmt.Sprintf("line %d differs from the known head", h.N))
		default:
			r.fault(Missing, "the log", fmt.Sprintf("line %d, a known head, is missing", h.N))
		}
	}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }
