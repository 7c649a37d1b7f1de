package reach

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	// checkers is the number of members that try one waypoint in a round.
	checkers = 4
	// roundWithin bounds the duration of a round.
	roundWithin = 15 * time.Second
	// maxRounds bounds the rounds at one time.
	maxRounds = 32
	// tries is the number of random picks among many members, before all are considered.
	tries = 64

	// checkAgain is the time until a reached waypoint is tried again.
	checkAgain = 30 * time.Minute
	// checkSoon is the time until a waypoint is tried again after the first failure.
	checkSoon = 10 * time.Second
	// checkMissed is the time until a waypoint is tried again after several failures in a row.
	checkMissed = 5 * time.Minute
	// checkSilent is the time until the next round if nobody has answered. It doubles each time, up to checkAgain.
	checkSilent = time.Minute
	// heardFor is the time for which a member that has sent something will probably answer.
	heardFor = time.Hour

	// maxWhy bounds the bytes of a member's reason.
	maxWhy = 150
)

// Verdict is the result of a round: whether members reach a waypoint.
type Verdict struct {
	Reachable bool      `json:"reachable"`
	Yes       int       `json:"yes"` // members that reached it
	Of        int       `json:"of"`  // members that answered
	At        time.Time `json:"at"`
	By        []string  `json:"by"`            // members that reached it, or all that tried if none did
	Why       string    `json:"why,omitempty"` // why it was not reached, in one member's words
}

// rounds decides which members try which waypoint, and judges their answers. A waypoint counts as unreachable
// if more than half of the answers say so in two rounds in a row. The second round asks other members if there
// are enough. It does no I/O.
type rounds struct {
	random func(n int) int

	mu      sync.Mutex
	targets map[string]*target
	open    map[string]*round    // by id
	spoke   map[string]time.Time // when each member last sent something
}

type target struct {
	addresses []netip.Addr
	port      uint16
	punch     bool
	due       time.Time
	round     *round
	missed    int // rounds in a row
	silent    int
	asked     []string // in the last round
	last      Verdict  // of the last round; zero time: nobody has answered yet
	verdict   Verdict  // zero time: none yet
}

type round struct {
	name string
	ends time.Time
	open map[string]bool // members that have not answered
	yes  []string
	no   []string
	why  string
}

func newRounds(random func(n int) int) *rounds {
	return &rounds{random: random, targets: map[string]*target{}, open: map[string]*round{}, spoke: map[string]time.Time{}}
}

// heard records that a member has sent something.
func (r *rounds) heard(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoke[name] = now
}

// waypoint is a waypoint's record.
type waypoint struct {
	name      string
	addresses []netip.Addr
	port      uint16
	punch     bool // its NAT lets in only hosts to which it has sent; members that try punch a hole first
}

// follow updates the waypoints from the directory. A waypoint whose address has changed counts as a new one.
func (r *rounds) follow(all []waypoint, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]bool{}
	for _, w := range all {
		there[w.name] = true
		t := r.targets[w.name]
		if t == nil || t.port != w.port || t.punch != w.punch || !slices.Equal(t.addresses, w.addresses) {
			r.targets[w.name] = &target{addresses: w.addresses, port: w.port, punch: w.punch, due: now}
		}
	}
	for name := range r.targets {
		if !there[name] {
			delete(r.targets, name)
		}
	}
	for name, at := range r.spoke {
		if now.Sub(at) > heardFor {
			delete(r.spoke, name)
		}
	}
}

// order is a check, and the members to ask for it.
type order struct {
	enrol.Check
	to []string
}

// next begins the rounds that are due, and returns the checks to request, each with the members to ask for it.
func (r *rounds) next(members []string, now time.Time, newID func() string) (out []order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, t := range r.targets {
		if t.round != nil || now.Before(t.due) || len(r.open) >= maxRounds {
			continue
		}
		to := r.choose(name, t, members)
		if len(to) == 0 {
			continue // until somebody is here
		}
		id := newID()
		t.round = &round{name: name, ends: now.Add(roundWithin), open: map[string]bool{}}
		for _, m := range to {
			t.round.open[m] = true
		}
		t.asked = to
		r.open[id] = t.round
		out = append(out, order{enrol.Check{
			ID: id, Name: name, Addresses: t.addresses, Port: t.port, Within: int(roundWithin / time.Second),
		}, to})
	}
	return out
}

// choose picks random members to try. It prefers members that will probably answer and were not asked last time.
func (r *rounds) choose(name string, t *target, members []string) (out []string) {
	rank := func(m string) int {
		n := 0
		if _, spoke := r.spoke[m]; !spoke {
			n += 2
		}
		if slices.Contains(t.asked, m) {
			n++
		}
		return n
	}
	if len(members) > 4*tries { // nearly all of them have the first rank
		for range tries {
			m := members[r.random(len(members))]
			if m != name && rank(m) == 0 && !slices.Contains(out, m) {
				out = append(out, m)
			}
			if len(out) == checkers {
				return out
			}
		}
		out = nil
	}
	ranked := make([][]string, 4)
	first := 0
	if len(members) > 0 {
		first = r.random(len(members))
	}
	for i := range members {
		if m := members[(first+i)%len(members)]; m != name {
			ranked[rank(m)] = append(ranked[rank(m)], m)
		}
	}
	for _, those := range ranked {
		for i := range min(len(those), checkers-len(out)) {
			j := i + r.random(len(those)-i)
			those[i], those[j] = those[j], those[i]
			out = append(out, those[i])
		}
	}
	return out
}

// answered takes a member's answer, once, if the member was asked.
func (r *rounds) answered(from string, c enrol.Checked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	round := r.open[c.ID]
	if round == nil || !round.open[from] {
		return
	}
	delete(round.open, from)
	if c.Reachable {
		round.yes = append(round.yes, from)
	} else {
		round.no = append(round.no, from)
		round.why = c.Why[:min(len(c.Why), maxWhy)]
	}
}

// close ends rounds that are over, and reports whether a waypoint has become reachable or unreachable.
func (r *rounds) close(now time.Time) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, round := range r.open {
		if len(round.open) > 0 && now.Before(round.ends) {
			continue
		}
		delete(r.open, id)
		if t := r.targets[round.name]; t != nil && t.round == round {
			t.round = nil
			changed = t.judge(round, now) || changed
		}
	}
	return changed
}

// judge evaluates a round, and reports whether the waypoint has become reachable or unreachable.
func (t *target) judge(round *round, now time.Time) (changed bool) {
	before := t.unreachable()
	yes, of := len(round.yes), len(round.yes)+len(round.no)
	if of == 0 {
		t.due = now.Add(min(checkSilent<<min(t.silent, 8), checkAgain))
		t.silent++
		return false
	}
	t.silent = 0
	v := Verdict{Reachable: 2*yes >= of, Yes: yes, Of: of, At: now.UTC(), By: round.yes}
	if yes == 0 {
		v.By = round.no
	}
	if !v.Reachable {
		v.Why = round.why
	}
	slices.Sort(v.By)
	t.last = v
	switch {
	case v.Reachable:
		t.missed, t.due, t.verdict = 0, now.Add(checkAgain), v
	case t.missed == 0:
		t.missed, t.due = 1, now.Add(checkSoon)
	default:
		t.missed, t.due, t.verdict = t.missed+1, now.Add(checkMissed), v
	}
	return t.unreachable() != before
}

func (t *target) unreachable() bool { return !t.verdict.At.IsZero() && !t.verdict.Reachable }

// unreachable returns the waypoints that cannot be reached, sorted.
func (r *rounds) unreachable() []string { return r.list((*target).unreachable) }

// untried returns the waypoints without a verdict, sorted.
func (r *rounds) untried() []string {
	return r.list(func(t *target) bool { return t.verdict.At.IsZero() })
}

func (r *rounds) list(which func(*target) bool) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, t := range r.targets {
		if which(t) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// tried returns the result of the last round about a waypoint, or nil.
func (r *rounds) tried(name string) *enrol.Tried {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.targets[name]
	if t == nil || t.last.At.IsZero() {
		return nil
	}
	return &enrol.Tried{At: t.last.At, Yes: t.last.Yes, Of: t.last.Of, By: t.last.By, Why: t.last.Why}
}

// of returns the verdict on a waypoint.
func (r *rounds) of(name string) (Verdict, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.targets[name]
	if t == nil || t.verdict.At.IsZero() {
		return Verdict{}, false
	}
	return t.verdict, true
}
