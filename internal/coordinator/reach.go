package coordinator

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	checkers    = 4 // members that are asked to try one waypoint
	roundWithin = 15 * time.Second
	maxRounds   = 32 // at once
	tries       = 64 // to find them by chance among many members, before all are looked at

	checkAgain  = 30 * time.Minute // one that was reached
	checkSoon   = 10 * time.Second // one that was not, by others
	checkMissed = 5 * time.Minute  // one that cannot be reached
	checkSilent = time.Minute      // one of which nobody has told anything; doubled up to checkAgain
	heardFor    = time.Hour        // who said something since then will probably answer
)

// Reach is what other members found of a waypoint that says where it can be reached.
type Reach struct {
	Reachable bool      `json:"reachable"`
	Yes       int       `json:"yes"` // of those who tried
	Of        int       `json:"of"`
	At        time.Time `json:"at"`
	By        []string  `json:"by"`            // those who reached it; if nobody did, those who tried
	Why       string    `json:"why,omitempty"` // it is not, in one's words
}

// reach decides who tries whom, and what to make of it: a waypoint's own word that it can be reached is only
// a claim. One cannot be reached if two rounds in a row, by different members where there are enough, say
// so with more than half of the answers. It does no I/O.
type reach struct {
	random func(n int) int

	mu      sync.Mutex
	targets map[string]*target
	rounds  map[string]*round // by id
	spoke   map[string]time.Time
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
	last      Reach    // what came of that; zero time: nobody has answered yet
	verdict   Reach    // zero time: none yet
}

type round struct {
	name string
	ends time.Time
	open map[string]bool // who has not answered
	yes  []string
	no   []string
	why  string
}

func newReach(random func(n int) int) *reach {
	return &reach{random: random, targets: map[string]*target{}, rounds: map[string]*round{}, spoke: map[string]time.Time{}}
}

// heard takes note that a member is there.
func (r *reach) heard(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoke[name] = now
}

// waypoint is one as its record says.
type waypoint struct {
	name      string
	addresses []netip.Addr
	port      uint16
	punch     bool // only whom it has sent to gets in; those who try see to that
}

// follow takes the waypoints that there are. What was found out about other addresses counts no more.
func (r *reach) follow(all []waypoint, now time.Time) {
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

// order is what is to be asked of whom.
type order struct {
	enrol.Check
	to []string
}

// next begins the rounds that are due, among these members, who can be asked.
func (r *reach) next(members []string, now time.Time, newID func() string) (out []order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, t := range r.targets {
		if t.round != nil || now.Before(t.due) || len(r.rounds) >= maxRounds {
			continue
		}
		to := r.choose(name, t, members)
		if len(to) == 0 {
			continue // until somebody is there
		}
		id := newID()
		t.round = &round{name: name, ends: now.Add(roundWithin), open: map[string]bool{}}
		for _, m := range to {
			t.round.open[m] = true
		}
		t.asked = to
		r.rounds[id] = t.round
		out = append(out, order{enrol.Check{
			ID: id, Name: name, Addresses: t.addresses, Port: t.port, Within: int(roundWithin / time.Second),
		}, to})
	}
	return out
}

// choose picks who is to try: by chance, those first that are probably there and were not asked last time.
func (r *reach) choose(name string, t *target, members []string) (out []string) {
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
	if len(members) > 4*tries { // of many, those of the first rank are nearly all
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

// answered takes what a member found, if it was asked, once.
func (r *reach) answered(from string, c enrol.Checked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	round := r.rounds[c.ID]
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

// close ends rounds that are over. changed says whether anybody can be reached that could not, or the other
// way round.
func (r *reach) close(now time.Time) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, round := range r.rounds {
		if len(round.open) > 0 && now.Before(round.ends) {
			continue
		}
		delete(r.rounds, id)
		if t := r.targets[round.name]; t != nil && t.round == round {
			t.round = nil
			changed = t.judge(round, now) || changed
		}
	}
	return changed
}

// judge makes a verdict of a round.
func (t *target) judge(round *round, now time.Time) (changed bool) {
	before := t.unreachable()
	yes, of := len(round.yes), len(round.yes)+len(round.no)
	if of == 0 {
		t.due = now.Add(min(checkSilent<<min(t.silent, 8), checkAgain))
		t.silent++
		return false
	}
	t.silent = 0
	v := Reach{Reachable: 2*yes >= of, Yes: yes, Of: of, At: now.UTC(), By: round.yes}
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

// unreachable lists them in order.
func (r *reach) unreachable() []string { return r.list((*target).unreachable) }

// untried lists the waypoints without a verdict in order.
func (r *reach) untried() []string {
	return r.list(func(t *target) bool { return t.verdict.At.IsZero() })
}

func (r *reach) list(which func(*target) bool) (names []string) {
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

// tried is what came of the last round about one; nil: nothing yet.
func (r *reach) tried(name string) *enrol.Tried {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.targets[name]
	if t == nil || t.last.At.IsZero() {
		return nil
	}
	return &enrol.Tried{At: t.last.At, Yes: t.last.Yes, Of: t.last.Of, By: t.last.By, Why: t.last.Why}
}

// of is what was found of one.
func (r *reach) of(name string) (Reach, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.targets[name]
	if t == nil || t.verdict.At.IsZero() {
		return Reach{}, false
	}
	return t.verdict, true
}
