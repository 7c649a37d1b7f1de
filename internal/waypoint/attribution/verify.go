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

// Authority says whose a chain of certificates is, if it was good at that time.
type Authority func(chain [][]byte, at time.Time) (Signer, error)

// Signer is a member, by its certificate.
type Signer struct {
	Name, Serial, Collective string
	Key                      ed25519.PublicKey
}

// clockStep is how far back times must go to be worth a note: entries are not written in the very order
// of their times.
const clockStep = time.Minute

// Verify checks a log, whose files may come in any order. The error is that of reading them.
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

// verifier goes through the lines once, in their order.
type verifier struct {
	authority Authority
	known     []knownHead
	report    *Report
	order
	of       *line // the line that says whose log this is
	certs    [][]byte
	sessions map[wire.SessionID]seen
	absent   map[wire.SessionID]bool
	time     time.Time // of the line before
	half     *text     // a line without its end
	sums     map[string]*summarised
}

// summarised is what the log only summarises of a member.
type summarised struct {
	lines    int
	from, to time.Time
}

// knownHead is a head that the log must have.
type knownHead struct {
	Head
	found bool
	other string // place of a line with the same number that is another one
}

// seen is what has to be remembered of a session that the log has shown.
type seen struct {
	member   string
	evidence hash // of all that is said of it
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
		return // out of place: what it says counts for nothing
	}
	v.say(t)
}

// begin takes up a file, which may be that of another log.
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

// say checks what a line says by itself.
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

// Check says why a session is not proven to be its member's; nil if it is.
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

// attributed checks that what a member is said to have caused is tied to its statement.
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
	case !shown && (v.of == nil || v.absent[l.Session]): // a fault already
	case !shown:
		v.absent[l.Session] = true
		r.fault(BadStatement, t.place(), fmt.Sprintf("the log lacks session %v, in which %s is said to have caused this", l.Session, l.Member))
	case s.member != l.Member:
		r.fault(BadStatement, t.place(), fmt.Sprintf("session %v belongs to %s, but the line names %s", l.Session, s.member, l.Member))
	}
}

// summarised adds up what the log does not tell in detail.
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
