package path_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// selection plays a connection that receives over paths of different quality, in virtual time. The server sends as
// TCP would on each of them, and obeys the priorities that it has heard.
type selection struct {
	t        *testing.T
	m        *path.Manager
	start    time.Time
	now      time.Time
	random   *rand.Rand
	paths    map[string]*pathWorth // by waypoint; "" is the direct one
	subflows []*carried
	server   netip.Addr // of the next connections; zero: web
	token    path.Token
	port     uint16
	upTo     uint64
	deafness float64 // share of MP_PRIO that gets lost
	strict   bool    // the kernel refuses a priority in the first 0.3 s of a subflow
	log      []string
	stubborn bool // the server uses only subflows that are no backups, though none works
	probes   bool // the kernel sends probes when asked to
	// disturb changes what comes after a probe was sent at this time. nil: nothing.
	disturb func(c *carried, sent time.Time)
}

// pathWorth describes a path.
type pathWorth struct {
	trip time.Duration
	rate float64 // segments a second
	loss float64
	// overtaken is the share of segments that come later. If this host sends them, the peer reports that they came twice.
	overtaken float64
	dead      bool
	deaf      bool // it does not answer joins
	refuses   bool // it refuses joins
	// large is the extra delay of full packets.
	large time.Duration
}

// carried is one subflow.
type carried struct {
	waypoint             string
	local, remote        netip.AddrPort
	backup, toldBackup   bool // by the client, and by the server
	segments, data, late uint64
	acked                uint64
	least, rtt           time.Duration // shortest and latest round trip of data that this host sent, or of the join
	credit               float64
	began                time.Time
	lastData, lastAnswer time.Time
	lastSent             time.Time   // when this host last sent data
	lateUntil            time.Time   // after a loss among segments that arrived at once
	repairs              []time.Time // when segments of a flow come again that were lost
	behind               time.Time   // when an overtaken segment of a flow comes
	out, again, needless uint32      // segments sent
	full                 bool        // its path has a queue
	probed               bool
	nextProbe            time.Time
	answers              time.Time // when the answer to a probe comes; zero: none is under way
	besides              uint64    // segments that come with it
	unanswered           int
	backoff              int
}

func newSelection(t *testing.T, paths map[string]*pathWorth) *selection {
	t.Helper()
	return newSelectionWith(t, paths, func(*path.Config) {})
}

// newSelectionWith is newSelection with some of the configuration changed.
func newSelectionWith(t *testing.T, paths map[string]*pathWorth, change func(*path.Config)) *selection {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true, Seed: 1}
	change(&config)
	s := &selection{
		t: t, start: start, now: start, paths: paths, random: rand.New(rand.NewPCG(1, 2)), port: 50000, probes: true,
		m: path.New(config),
	}
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	return s
}

// offer puts in-band detours on offer.
func (s *selection) offer(waypoints ...string) {
	for _, waypoint := range waypoints {
		s.tell(path.DetourOffered{Detour: path.Detour{
			ID: path.DetourID(waypoint), Kind: path.InBand, Waypoint: waypoint, Remote: netip.AddrPortFrom(ip(waypoint), 0),
		}})
	}
}

// connect begins a connection after the last one ended.
func (s *selection) connect() {
	if !s.server.IsValid() {
		s.server = ip("web")
	}
	if s.token > 0 {
		s.tell(path.ConnClosed{Token: s.token})
	}
	s.token++
	s.port++
	first := &carried{local: netip.AddrPortFrom(ip("me"), s.port), remote: netip.AddrPortFrom(s.server, 80), lastData: s.now, lastAnswer: s.now, lastSent: s.now}
	s.subflows = []*carried{first}
	s.tell(path.ConnEstablished{Token: s.token, Local: first.local, Remote: first.remote})
}

func (s *selection) since() time.Duration { return s.now.Sub(s.start) }

func (s *selection) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%v ", s.since().Round(time.Second))+fmt.Sprintf(format, args...))
}

func (s *selection) find(local netip.AddrPort) *carried {
	for _, c := range s.subflows {
		if c.local == local {
			return c
		}
	}
	return nil
}

// over returns the subflow through a waypoint, or the direct one if it is "".
func (s *selection) over(waypoint string) *carried {
	for _, c := range s.subflows {
		if c.waypoint == waypoint {
			return c
		}
	}
	return nil
}

func name(waypoint string) string {
	if waypoint == "" {
		return "direct"
	}
	return waypoint
}

func (s *selection) tell(ev path.Event) {
	var follow []path.Event
	for _, a := range slices.Clone(s.m.Handle(ev, s.now)) {
		switch a := a.(type) {
		case path.CreateSubflow:
			s.port++
			local := netip.AddrPortFrom(ip("me"), s.port)
			if a.Local.IsValid() {
				local = netip.AddrPortFrom(a.Local, s.port)
			}
			follow = append(follow, path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: local})
			if w := s.paths[a.Waypoint]; w != nil && (w.deaf || w.refuses) {
				s.note("ask %s", name(a.Waypoint))
				if w.refuses {
					follow = append(follow, path.SubflowClosed{Token: a.Token, LocalID: a.LocalID, Local: local, Remote: a.Remote, Err: syscall.ECONNREFUSED})
				}
				continue
			}
			s.subflows = append(s.subflows, &carried{
				waypoint: a.Waypoint, local: local, remote: a.Remote, backup: a.Backup, toldBackup: a.Backup,
				began: s.now, lastData: s.now, lastAnswer: s.now, lastSent: s.now,
			})
			s.note("join %s%s", name(a.Waypoint), map[bool]string{true: " as backup"}[a.Backup])
			follow = append(follow, path.SubflowEstablished{Token: a.Token, LocalID: a.LocalID, Local: local, Remote: a.Remote})
		case path.DestroySubflow:
			if c := s.find(a.Local); c != nil {
				if c.waypoint == "" {
					s.t.Fatalf("the direct path is ended: %v", s.log)
				}
				s.subflows = slices.DeleteFunc(s.subflows, func(x *carried) bool { return x == c })
				s.note("end %s", c.waypoint)
			}
		case path.SetBackup:
			if c := s.find(a.Local); c != nil {
				if c.backup != a.Backup {
					s.note("%s %s", map[bool]string{true: "demote", false: "promote"}[a.Backup], name(c.waypoint))
				}
				c.backup = a.Backup
				if refused := s.strict && s.now.Sub(c.began) < 300*time.Millisecond; !refused && s.random.Float64() >= s.deafness {
					c.toldBackup = a.Backup
				}
			}
			if !slices.ContainsFunc(s.subflows, func(c *carried) bool { return !c.backup }) {
				s.t.Fatalf("nothing carries: %v", s.log)
			}
		case path.Probe:
			if c := s.find(a.Local); c != nil {
				c.probed, c.nextProbe, c.answers = a.On, later(s.now, c.lastAnswer.Add(time.Second)), time.Time{}
			}
		}
	}
	for _, ev := range follow {
		s.tell(ev)
	}
}

// uses returns the subflows on which the server sends: those that are no backups, if one of them works.
func (s *selection) uses() []*carried {
	full := slices.DeleteFunc(slices.Clone(s.subflows), func(c *carried) bool { return c.toldBackup })
	if s.stubborn && len(full) > 0 || slices.ContainsFunc(full, func(c *carried) bool { return !s.paths[c.waypoint].dead }) {
		return full
	}
	return s.subflows
}

// bulk lets as much arrive as the paths carry, for this time.
func (s *selection) bulk(long time.Duration) {
	for end := s.now.Add(long); s.now.Before(end); {
		for _, c := range s.uses() {
			w := s.paths[c.waypoint]
			rate := w.rate
			if w.loss > 0 {
				rate = min(rate, 1.2/w.trip.Seconds()/math.Sqrt(w.loss))
			}
			c.full = w.rate == rate
			s.flow(c, rate*dt.Seconds())
		}
		s.step()
	}
	for _, c := range s.subflows {
		c.full = false
	}
}

// messages lets small answers arrive, each to a request, on one of the paths that the server uses.
func (s *selection) messages(long, every time.Duration) {
	for end := s.now.Add(long); s.now.Before(end); {
		if s.since()%every == 0 {
			if uses := s.uses(); len(uses) > 0 {
				c := uses[s.random.IntN(len(uses))]
				c.lastSent = s.now.Add(dt / 2)
				s.arrive(c, 3)
			}
		}
		s.step()
	}
}

// stream lets the server send a little again and again, without being asked. What it sends on a dead path it repeats
// on another that it uses.
func (s *selection) stream(long, every time.Duration) {
	for end := s.now.Add(long); s.now.Before(end); {
		uses := slices.DeleteFunc(slices.Clone(s.uses()), func(c *carried) bool { return s.paths[c.waypoint].dead })
		if s.since()%every == 0 && len(uses) > 0 {
			s.arrive(uses[s.random.IntN(len(uses))], 3)
		}
		s.step()
	}
}

// pause lets time pass in which nobody sends.
func (s *selection) pause(long time.Duration) {
	for end := s.now.Add(long); s.now.Before(end); {
		s.step()
	}
}

// arrive lets segments arrive at once. The sender learns of a loss after a tenth of a second.
func (s *selection) arrive(c *carried, n float64) {
	s.each(c, n, func(w *pathWorth, _ time.Time, lost bool) {
		if lost {
			c.lateUntil = s.now.Add(dt + w.trip)
		}
		if s.now.Before(c.lateUntil) {
			c.late++
		}
	})
}

// flow lets segments arrive evenly in this tenth of a second. The sender learns of a loss when the next one has arrived. A
// segment that comes again fills the oldest gap.
func (s *selection) flow(c *carried, n float64) {
	s.each(c, n, func(w *pathWorth, at time.Time, lost bool) {
		switch {
		case w.overtaken > 0 && s.random.Float64() < w.overtaken:
			c.behind = at.Add(overtakenBy)
		case lost:
			c.repairs = append(c.repairs, at.Add(time.Duration(float64(dt)/n)+c.trip(w)))
		case len(c.repairs) > 0 && !at.Before(c.repairs[0]):
			c.repairs = c.repairs[1:]
		case len(c.repairs) > 0 || at.Before(c.behind):
			c.late++
		}
	})
}

// overtakenBy is the delay of segments that others overtake.
const overtakenBy = 10 * time.Millisecond

// upload lets this host send as much as the paths carry, for this time.
func (s *selection) upload(long time.Duration) {
	for end := s.now.Add(long); s.now.Before(end); {
		for _, c := range s.uses() {
			w := s.paths[c.waypoint]
			c.full = true
			for range int(w.rate * dt.Seconds()) {
				c.out++
				c.acked += 1400
				lost := s.random.Float64() < w.loss
				overtaken := s.random.Float64() < w.overtaken
				if lost || overtaken {
					c.out++
					c.again++
				}
				if overtaken {
					c.needless++
				}
			}
			c.lastAnswer, c.lastSent = s.now.Add(dt), s.now.Add(dt)
		}
		s.step()
	}
}

// each lets segments arrive in this tenth of a second. arrives is told when, if they arrive evenly, and whether they were lost
// at first.
func (s *selection) each(c *carried, n float64, arrives func(w *pathWorth, at time.Time, lost bool)) {
	w := s.paths[c.waypoint]
	if w.dead {
		return
	}
	c.credit += n
	for all := c.credit; c.credit >= 1; c.credit-- {
		c.segments++
		c.data++
		s.upTo += 1400
		c.lastData, c.lastAnswer, c.unanswered = s.now.Add(dt), s.now.Add(dt), 0
		arrives(w, s.now.Add(time.Duration((1-c.credit/all)*float64(dt))), s.random.Float64() < w.loss)
	}
}

// trip returns the round trip over a path with its queue.
func (c *carried) trip(w *pathWorth) time.Duration {
	if c.full {
		return w.trip*3/2 + 10*time.Millisecond
	}
	return w.trip
}

// step lets a tenth of a second pass.
func (s *selection) step() {
	s.now = s.now.Add(dt)
	for {
		at, ok := s.m.Next()
		if !ok || at.After(s.now) {
			break
		}
		s.tell(path.Tick{})
	}
	ev := path.Measured{Progress: []path.Progress{{Token: s.token, Received: s.upTo}}}
	for _, c := range s.subflows {
		w := s.paths[c.waypoint]
		if c.least == 0 {
			c.least, c.rtt = w.trip, w.trip
		}
		s.probe(c)
		receiver := time.Duration(0)
		if c.full {
			receiver = c.trip(w)
		}
		ev.Samples = append(ev.Samples, path.Sample{
			Token: s.token, Local: c.local, Remote: c.remote, BytesReceived: 1400 * c.data, BytesAcked: c.acked, MinRTT: c.least, RTT: c.rtt, ReceiverRTT: receiver, Timestamps: true,
			DataSegsOut: c.out, Retransmitted: c.again, Needless: c.needless, Limited: c.full,
			SegsIn: c.segments, DataSegsIn: c.data, OutOfOrder: c.late, DataEnd: s.upTo, Backoff: c.backoff, Probes: c.unanswered,
			LastData: s.now.Sub(c.lastData), LastAnswer: s.now.Sub(c.lastAnswer), LastSent: s.now.Sub(c.lastSent),
		})
	}
	s.tell(ev)
}

// probe plays the kernel's probes: one after each second in which nothing arrived and none was sent.
func (s *selection) probe(c *carried) {
	if next := later(c.nextProbe, c.lastAnswer.Add(time.Second)); c.probed && s.probes && !next.After(s.now) {
		c.unanswered++
		c.nextProbe = next.Add(time.Second)
		if w := s.paths[c.waypoint]; !w.dead {
			c.answers = next.Add(w.trip)
		}
		if s.disturb != nil {
			s.disturb(c, next)
		}
	}
	if !c.answers.IsZero() && !c.answers.After(s.now) {
		c.segments += 1 + c.besides
		c.lastAnswer, c.answers, c.unanswered, c.besides = c.answers, time.Time{}, 0, 0
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// want checks what happened since the last want.
func (s *selection) want(what string, happened ...string) {
	s.t.Helper()
	var got []string
	for _, line := range s.log {
		_, did, _ := strings.Cut(line, " ")
		got = append(got, did)
	}
	if !slices.Equal(got, happened) {
		s.t.Errorf("%s: want %q, got %q", what, happened, s.log)
	}
	s.log = nil
}

func good() *pathWorth { return &pathWorth{trip: 40 * time.Millisecond, rate: 800} }

// A detour that loses too much gives its place to another, which later connections take at once.
func TestLossyDetourIsReplaced(t *testing.T) {
	for _, loss := range []float64{0.03, 0.05} {
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			bad := good()
			bad.loss = loss
			s := newSelection(t, map[string]*pathWorth{"": good(), "bob": bad, "carol": good()})
			s.offer("bob")
			s.connect()
			s.bulk(time.Second)
			s.want("at first", "join bob")
			s.bulk(3 * time.Second)
			s.offer("carol") // before that, it is tried
			s.bulk(16 * time.Second)
			s.want("with the loss", "demote bob", "join carol", "end bob")
			s.bulk(10 * time.Minute)
			s.want("afterwards")
			s.connect()
			s.bulk(10 * time.Second)
			if s.over("carol") == nil || s.over("bob") != nil {
				t.Errorf("the next connection: %v", s.log)
			}
		})
	}
}

// If there is no other detour, it stays as a backup, and is tried again less and less often.
func TestOnlyLossyDetourStandsBy(t *testing.T) {
	bad := good()
	bad.loss = 0.05
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": bad})
	s.offer("bob")
	s.connect()
	s.bulk(30 * time.Second)
	s.want("with the loss", "join bob", "demote bob")
	s.connect()
	s.bulk(10 * time.Second)
	s.want("the next connection", "join bob as backup")
	s.bulk(time.Hour)
	if promoted := strings.Count(strings.Join(s.log, ";"), "promote bob"); promoted < 3 || promoted > 7 {
		t.Errorf("tried again %d times in an hour: %v", promoted, s.log)
	}
	s.log, bad.loss = nil, 0
	s.bulk(time.Hour)
	s.want("without loss", "promote bob")
}

// A detour on which packets are overtaken keeps its place, and counts as losing little. So does one whose packets are sent
// again although they arrived.
func TestOvertakenIsNotLost(t *testing.T) {
	for name, carry := range map[string]func(*selection, time.Duration){"download": (*selection).bulk, "upload": (*selection).upload} {
		t.Run(name, func(t *testing.T) {
			bob := &pathWorth{trip: 40 * time.Millisecond, rate: 150, overtaken: 0.05}
			s := newSelection(t, map[string]*pathWorth{"": {trip: 40 * time.Millisecond, rate: 150}, "bob": bob})
			s.offer("bob")
			s.connect()
			carry(s, 2*time.Minute)
			s.want("with what is overtaken", "join bob")
			bob.loss, bob.overtaken = 0.05, 0
			carry(s, 20*time.Second)
			s.want("with loss", "demote bob")
		})
	}
}

// A detour that loses little, or no more than the direct path, keeps its place and carries.
func TestGoodDetourCarries(t *testing.T) {
	for name, c := range map[string]struct{ direct, detour pathWorth }{
		"no loss":            {*good(), *good()},
		"a little":           {*good(), pathWorth{trip: 40 * time.Millisecond, rate: 800, loss: 0.005}},
		"both lose as much":  {pathWorth{trip: 40 * time.Millisecond, rate: 800, loss: 0.04}, pathWorth{trip: 40 * time.Millisecond, rate: 800, loss: 0.04}},
		"five times as long": {*good(), pathWorth{trip: 200 * time.Millisecond, rate: 800}},
		"a fifth as fast":    {*good(), pathWorth{trip: 40 * time.Millisecond, rate: 160}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": &c.direct, "bob": &c.detour})
			s.offer("bob")
			s.connect()
			s.bulk(time.Hour)
			s.want("in an hour", "join bob")
		})
	}
}

// If the direct path is the lossy one, the detour carries alone. The direct path is tried again and never ended. It
// carries at once when the detour ends.
func TestLossyDirectPathStandsBy(t *testing.T) {
	direct := good()
	direct.loss = 0.1
	s := newSelection(t, map[string]*pathWorth{"": direct, "bob": good()})
	s.offer("bob")
	s.connect()
	s.bulk(40 * time.Second)
	s.want("with the loss", "join bob", "demote direct")
	s.bulk(50 * time.Second)
	s.want("a minute later", "promote direct", "demote direct")
	bob := s.over("bob")
	s.subflows = s.subflows[:1]
	s.tell(path.SubflowClosed{Token: s.token, Local: bob.local, Remote: bob.remote})
	s.want("without the detour", "promote direct")
}

// The path with the shorter round trip carries messages, and the other stands by. Bulk traffic uses both again.
func TestMessagesUseTheShorterPath(t *testing.T) {
	for name, c := range map[string]struct {
		direct, detour time.Duration
		happens        []string
	}{
		"detour longer":        {40 * time.Millisecond, 200 * time.Millisecond, []string{"demote bob"}},
		"detour a bit longer":  {40 * time.Millisecond, 45 * time.Millisecond, []string{"demote bob"}},
		"detour a bit shorter": {40 * time.Millisecond, 36 * time.Millisecond, []string{"demote bob"}},
		"detour shorter":       {100 * time.Millisecond, 40 * time.Millisecond, []string{"demote direct"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": {trip: c.direct, rate: 800}, "bob": {trip: c.detour, rate: 800}})
			s.offer("bob")
			s.connect()
			s.log = nil
			s.messages(10*time.Second, 2*dt)
			s.want("messages", c.happens...)
			carries, standsBy := "", "bob"
			if c.happens[0] == "demote direct" {
				carries, standsBy = "bob", ""
			}
			s.messages(10*time.Minute, 2*dt)
			s.want("more of them")
			if why := s.why(standsBy); !strings.HasPrefix(why, "stands by: messages take") {
				t.Errorf("why %s does: %q", name, why)
			}
			s.bulk(20 * time.Second)
			s.want("bulk", "promote "+map[bool]string{true: "direct", false: "bob"}[standsBy == ""])
			s.messages(30*time.Second, 2*dt)
			if s.over(carries).backup || !s.over(standsBy).backup {
				t.Errorf("messages again: %v", s.log)
			}
		})
	}
}

// When the path that carries messages becomes much longer, they go over another before long.
func TestMessagesLeaveALongPath(t *testing.T) {
	direct := &pathWorth{trip: 40 * time.Millisecond, rate: 800}
	s := newSelection(t, map[string]*pathWorth{"": direct, "bob": {trip: 40 * time.Millisecond, rate: 800}})
	s.offer("bob")
	s.connect()
	s.exchanges(20*time.Second, 500*time.Millisecond)
	if s.over("").backup {
		t.Fatalf("the direct path stands by: %v", s.log)
	}
	s.log, direct.trip = nil, 320*time.Millisecond
	s.exchanges(1500*time.Millisecond, 500*time.Millisecond)
	if s.over("bob").backup || !s.over("").backup {
		t.Errorf("after 1.5 s: %v", s.log)
	}
	if why := s.why(""); !strings.HasPrefix(why, "stands by: messages take 320.0 ms over it, 40.0 ms over the path through bob") {
		t.Errorf("why: %q", why)
	}
}

// A short detour carries messages if it loses nothing. If it loses packets, it carries them for
// seconds only, because a lost packet delays several messages.
func TestMessagesLeaveALossyDetour(t *testing.T) {
	for loss, within := range map[float64]time.Duration{0: 0, 0.003: 40 * time.Second, 0.005: 15 * time.Second, 0.01: 10 * time.Second, 0.02: 10 * time.Second} {
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": {trip: 26 * time.Millisecond, rate: 800}, "bob": {trip: 10 * time.Millisecond, rate: 800, loss: loss}})
			s.offer("bob")
			s.connect()
			s.stream(time.Second, dt)
			if !s.over("").backup || s.over("bob").backup {
				t.Fatalf("the shorter path does not carry: %v", s.log)
			}
			if within == 0 {
				s.stream(5*time.Minute, dt)
				if s.over("bob").backup {
					t.Errorf("it was left: %v", s.log)
				}
				return
			}
			s.stream(within, dt)
			if s.over("").backup || !s.over("bob").backup {
				t.Errorf("it carries after %v: %v", within, s.log)
			}
			if why := s.why("bob"); !strings.HasPrefix(why, "stands by: messages take") || !strings.Contains(why, "% lost) over it, 26.0 ms over the direct path") {
				t.Errorf("why: %q", why)
			}
			s.log = nil
			s.stream(5*time.Minute, dt)
			s.want("later")
		})
	}
}

// A stream leaves a direct path that loses 1 % for a detour that is about as long after few losses. It stays if hardly
// anything is lost. If both paths lose, it does not move again and again.
func TestStreamEscapesLosses(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		loss, detourLoss float64
		trip             time.Duration
		leaves, moves    int // connections of 10 that leave the direct path within 12 s, at least, and the most moves of one within a minute
	}{
		"1 %":                   {0.01, 0, 31 * ms, 9, 1},
		"hardly any":            {0.0002, 0, 30 * ms, 0, 1},
		"the detour loses, too": {0.01, 0.01, 30 * ms, 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			left := 0
			for seed := range uint64(10) {
				s := newSelection(t, map[string]*pathWorth{"": {trip: 30 * ms, rate: 800, loss: c.loss}, "bob": {trip: c.trip, rate: 800, loss: c.detourLoss}})
				s.random = rand.New(rand.NewPCG(18, seed))
				s.offer("bob")
				s.connect()
				s.stream(time.Second, dt)
				s.log = nil
				s.stream(11*time.Second, dt)
				if s.over("").backup {
					left++
				}
				s.stream(48*time.Second, dt)
				if moves := len(s.log) / 2; moves > c.moves {
					t.Errorf("seed %d: %d moves: %v", seed, moves, s.log)
				}
			}
			if left < c.leaves || c.leaves == 0 && left > 0 {
				t.Errorf("%d of 10 left the direct path within 12 s", left)
			}
		})
	}
}

// A stream left the direct path because of its losses. It tries the direct path again now and then, and stays there once that
// loses nothing any more.
func TestStreamReturnsToHealedDirectPath(t *testing.T) {
	const ms = time.Millisecond
	for seed := range uint64(5) {
		s := newSelection(t, map[string]*pathWorth{"": {trip: 30 * ms, rate: 800, loss: 0.03}, "bob": {trip: 60 * ms, rate: 800}})
		s.random = rand.New(rand.NewPCG(18, seed))
		s.offer("bob")
		s.connect()
		s.stream(time.Minute, dt)
		if !s.over("").backup {
			t.Fatalf("seed %d: the stream did not leave the direct path", seed)
		}
		lossy := 0 // seconds
		for range 30 * 60 {
			s.stream(time.Second, dt)
			if !s.over("").backup {
				lossy++
			}
		}
		if most := 30 * 60 / 20; lossy > most {
			t.Errorf("seed %d: the lossy path carried for %d s of half an hour, at most %d expected", seed, lossy, most)
		}
		s.paths[""].loss = 0
		s.stream(8*time.Minute, dt)
		if s.over("").backup {
			t.Errorf("seed %d: the stream does not return to the direct path", seed)
		}
	}
}

// A detour that is four times as long carries no stream while the direct path loses 0.6 %, although that seems to be more
// now and then. It does when the direct path loses 4 %.
func TestStreamStaysOnTheShorterPath(t *testing.T) {
	for loss, stays := range map[float64]bool{0.006: true, 0.04: false} {
		for seed := range uint64(10) {
			s := newSelection(t, map[string]*pathWorth{"": {trip: 20 * time.Millisecond, rate: 800, loss: loss}, "bob": {trip: 80 * time.Millisecond, rate: 800}})
			s.random = rand.New(rand.NewPCG(18, seed))
			s.offer("bob")
			s.connect()
			s.stream(20*time.Second, dt)
			s.stream(30*time.Minute, dt)
			if moved := slices.ContainsFunc(s.log, func(line string) bool { return strings.HasSuffix(line, "demote direct") }); moved == stays {
				t.Errorf("%v lost, %d: %v", loss, seed, s.log)
			}
		}
	}
}

func (s *selection) why(waypoint string) string { return s.shown(waypoint).Why }

// shown returns the state of the subflow through a waypoint as users see it, or a zero one if there is none.
func (s *selection) shown(waypoint string) path.SubflowState {
	for _, c := range s.m.Snapshot(s.now).Conns {
		for _, f := range c.Subflows {
			if f.Waypoint == waypoint {
				return f
			}
		}
	}
	return path.SubflowState{}
}

// If the operator states the kind of traffic, its appearance does not count.
func TestKindByPort(t *testing.T) {
	for name, c := range map[string]struct {
		config  path.Config
		happens []string
	}{
		"messages": {path.Config{MessagePorts: []uint16{80}}, nil},
		"bulk":     {path.Config{BulkPorts: []uint16{80}}, nil},
		"other":    {path.Config{MessagePorts: []uint16{81}, BulkPorts: []uint16{82}}, []string{"demote bob", "promote bob"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": {trip: 40 * time.Millisecond, rate: 800}, "bob": {trip: 200 * time.Millisecond, rate: 800}})
			c.config.Policy, c.config.ByWorth = policy.Detours{Subflows: 2}, true
			s.m = path.New(c.config)
			s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
			s.offer("bob")
			s.connect()
			s.log = nil
			s.messages(10*time.Second, 2*dt)
			s.bulk(20 * time.Second)
			s.want("all", c.happens...)
		})
	}
}

// A backup carries at once when the path that carries becomes silent, by the kernel's timer or by missing answers.
func TestStandbyTakesOver(t *testing.T) {
	for name, stall := range map[string]func(direct *carried){
		"unanswered": func(direct *carried) { direct.backoff = 1 },
		"silent":     func(*carried) {},
	} {
		t.Run(name, func(t *testing.T) {
			direct := good()
			s := newSelection(t, map[string]*pathWorth{"": direct, "bob": {trip: 60 * time.Millisecond, rate: 800}})
			s.offer("bob")
			s.connect()
			s.messages(20*time.Second, 2*dt)
			s.want("messages", "join bob", "demote bob")
			direct.dead = true
			stall(s.over(""))
			died := s.now
			for s.over("bob").backup && s.now.Sub(died) < 5*time.Second {
				s.over("").lastSent = s.now
				s.step()
			}
			t.Logf("took over after %v", s.now.Sub(died))
			if took := s.now.Sub(died); took > 600*time.Millisecond {
				t.Errorf("after %v: %v", took, s.log)
			}
			s.messages(20*time.Second, 2*dt)
			if s.over("bob").backup {
				t.Errorf("stands by again, beside a dead path: %v", s.log)
			}
		})
	}
}

// Pauses of the program do not count as stalls, or not for long.
func TestPausesAreNoStalls(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": {trip: 60 * time.Millisecond, rate: 800}})
	s.offer("bob")
	s.connect()
	s.messages(20*time.Second, 2*dt)
	s.want("messages", "join bob", "demote bob")
	for range 200 {
		s.messages(15*time.Second, 2*dt)
		for range 10 + s.random.IntN(30) {
			s.step()
		}
	}
	if n := strings.Count(strings.Join(s.log, ";"), "promote"); n > 14 { // at growing intervals, up to ten minutes
		t.Errorf("%d promotions in an hour: %v", n, s.log)
	}
}

// MP_PRIO is sent again until the server has it.
func TestPriorityIsToldAgain(t *testing.T) {
	bad := good()
	bad.loss = 0.05
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": bad})
	s.deafness = 0.7
	s.offer("bob")
	s.connect()
	s.bulk(45 * time.Second)
	s.want("with the loss", "join bob", "demote bob")
	if !s.over("bob").toldBackup {
		t.Error("the server was not told")
	}
}

// Linux may refuse a priority just after a subflow came up. It is sent again soon afterwards, also if nothing moves on the
// subflow.
func TestRefusedPriorityIsSentAgain(t *testing.T) {
	s := limited(t, budget.Limits{Total: 30_000})
	s.strict = true
	s.offer("bob")
	s.connect()
	s.bulk(2 * time.Second)
	s.want("a small budget", "join bob", "demote bob")
	if bob := s.over("bob"); !bob.toldBackup || bob.data*1400 > megabyte {
		t.Errorf("backup for the server: %v, after %d bytes", bob.toldBackup, bob.data*1400)
	}
}

// The waypoint with the shorter path is taken, however long the other was on offer.
func TestCloserWaypointIsTaken(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()})
	s.offer("bob")
	s.offer("carol")
	s.tell(path.WaypointMeasured{Waypoint: "bob", Addr: ip("bob"), RTT: 15 * time.Millisecond})
	s.tell(path.WaypointMeasured{Waypoint: "carol", Addr: ip("carol"), RTT: 7 * time.Millisecond})
	for range 20 {
		s.connect()
		s.want("a connection", "join carol")
	}
	if why := s.why("carol"); !strings.Contains(why, "messages through carol take 7.0 ms, through bob 15.0 ms (expected)") {
		t.Errorf("why: %q", why)
	}
}

// The loss of a session counts only as far as it is certain: three of twenty packets are no reason to give up a
// shorter path, sixty of four hundred are.
func TestLossOfASessionCountsWhenItIsCertain(t *testing.T) {
	for _, test := range []struct {
		packets float64
		want    string
	}{{0, "join carol"}, {20, "join carol"}, {400, "join bob"}} {
		s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()})
		s.offer("bob", "carol")
		s.tell(path.WaypointMeasured{Waypoint: "bob", Addr: ip("bob"), RTT: 15 * time.Millisecond, Packets: 400})
		s.tell(path.WaypointMeasured{Waypoint: "carol", Addr: ip("carol"), RTT: 7 * time.Millisecond, Loss: 0.15, Packets: test.packets})
		for range 20 {
			s.connect()
			s.want(fmt.Sprintf("a loss seen in %v packets", test.packets), test.want)
		}
	}
}

// Equal waypoints get equal shares.
func TestEqualWaypointsAreDrawn(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good(), "dave": good()})
	s.offer("bob", "carol", "dave")
	count := make(map[string]int)
	for range 600 {
		s.connect()
		count[s.subflows[1].waypoint]++
	}
	for waypoint, n := range count {
		if n < 150 || n > 250 {
			t.Errorf("%s got %d of 600 connections: %v", waypoint, n, count)
		}
	}
}

// Two waypoints that are nearly as good share the connections, whatever their round trips: no fixed border divides them.
func TestNearlyEqualWaypointsAreDrawn(t *testing.T) {
	for trip := 18 * time.Millisecond; trip < 30*time.Millisecond; trip += time.Millisecond {
		s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()})
		s.offer("bob", "carol")
		s.tell(path.WaypointMeasured{Waypoint: "bob", Addr: ip("bob"), RTT: trip})
		s.tell(path.WaypointMeasured{Waypoint: "carol", Addr: ip("carol"), RTT: trip + time.Millisecond})
		further := 0
		for range 300 {
			s.connect()
			if s.subflows[1].waypoint == "carol" {
				further++
			}
		}
		if further < 75 || further > 150 {
			t.Errorf("with round trips of %v and %v, %d of 300 connections take the second waypoint", trip, trip+time.Millisecond, further)
		}
	}
}

// Subflows from before the agent are left alone, except that the direct path carries again: the first subflow or one
// that took its place.
func TestAdoptedConnectionIsNotWeighed(t *testing.T) {
	for _, id := range []uint8{0, 3} {
		t.Run(fmt.Sprintf("direct path has id %d", id), func(t *testing.T) {
			bad := good()
			bad.loss = 0.05
			s := newSelection(t, map[string]*pathWorth{"": good(), "bob": bad})
			s.offer("bob")
			s.adopt(id, true)
			s.bulk(time.Minute)
			s.want("adopted", "promote direct")
		})
	}
}

// The kind of an adopted connection's traffic is found, and so is the death of its direct path.
func TestAdoptedConnectionIsMeasured(t *testing.T) {
	for want, traffic := range map[string]func(*selection, time.Duration){
		"bulk":     (*selection).bulk,
		"messages": func(s *selection, long time.Duration) { s.messages(long, 2*dt) },
	} {
		direct := good()
		s := newSelection(t, map[string]*pathWorth{"": direct, "bob": good()})
		s.offer("bob")
		s.adopt(0, false)
		traffic(s, 20*time.Second)
		if is := s.m.Snapshot(s.now).Conns[0].Traffic; is != want {
			t.Errorf("%s is taken for %s", want, is)
		}
		direct.dead = true
		traffic(s, 20*time.Second)
		if is, d := s.state(""), s.direct(); is != "silent" || d.Word != path.DirectLost {
			t.Errorf("%s: the dead direct path is %s, %+v", want, is, d)
		}
		s.want(want)
	}
}

// adopt begins a connection with a subflow through bob that an earlier agent opened. id is that of the direct subflow.
func (s *selection) adopt(id uint8, backup bool) {
	s.token = 1
	s.subflows = []*carried{
		{local: netip.AddrPortFrom(ip("me"), 5000), remote: netip.AddrPortFrom(ip("web"), 80), backup: backup, toldBackup: backup},
		{waypoint: "bob", local: netip.AddrPortFrom(ip("me"), 5001), remote: netip.AddrPortFrom(ip("bob"), 80)},
	}
	live := path.LiveConn{Token: 1, Local: s.subflows[0].local, Remote: s.subflows[0].remote}
	for i, c := range s.subflows {
		live.Subflows = append(live.Subflows, path.LiveSubflow{LocalID: id + uint8(i), Local: c.local, Remote: c.remote, Backup: c.backup})
	}
	s.tell(path.Resync{Conns: []path.LiveConn{live}})
}

// A spare is compared by number with the detour that is taken before it.
func TestWhySpare(t *testing.T) {
	s := newSelectionWith(t, unlike(), func(c *path.Config) { c.BulkPorts = []uint16{80} })
	s.bulkOver("bob", 20*time.Second)
	s.bulkOver("carol", 20*time.Second)
	s.tell(path.ConnClosed{Token: s.token})
	s.now = s.now.Add(3 * time.Second)
	s.offer("bob", "carol", "dave")
	words := func(port uint16) map[string]string {
		why := make(map[string]string)
		for _, c := range s.m.Explain(netip.AddrPortFrom(ip("web"), port), netip.Addr{}, s.now).Candidates {
			why[c.Waypoint] = c.Why() + "; " + c.Change()
		}
		return why
	}
	x := s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now)
	if d := x.Direct; d.Wait != 60*time.Millisecond || !d.ExpectedKnown || d.Expected < 2e6 || d.Expected > 4e6 {
		t.Errorf("direct: %+v", d)
	}
	// The reasons have the same numbers for programs.
	for _, c := range x.Candidates {
		if c.ExpectedKnown != (c.Waypoint != "dave") || c.Waypoint == "carol" && math.Abs(c.Expected-17.9e6) > 0.05e6 {
			t.Errorf("%s: expects %.0f, %v", c.Waypoint, c.Expected, c.ExpectedKnown)
		}
		r, want := c.Reason, map[string]string{"bob": "less-goodput", "carol": "chosen", "dave": "goodput-unknown"}[c.Waypoint]
		if r.Code() != want {
			t.Errorf("%s: code %q, want %q", c.Waypoint, r.Code(), want)
		}
		if x := r.Compared(); len(x) != 1 || c.Waypoint != "carol" && (x[0].Waypoint != "carol" || math.Abs(x[0].OtherGoodput-17.9e6) > 0.05e6) ||
			c.Waypoint == "bob" && math.Abs(x[0].Goodput-2.2e6) > 0.05e6 {
			t.Errorf("%s: %+v", c.Waypoint, x)
		}
	}
	why := words(80)
	if want := "a spare: one more bulk connection may expect 2.2 Mbit/s of it, 17.9 Mbit/s of carol; at more than that it comes first"; why["bob"] != want {
		t.Errorf("bob: %q", why["bob"])
	}
	if !strings.HasSuffix(why["carol"], "; at less than 2.2 Mbit/s, bob comes first") {
		t.Errorf("carol: %q", why["carol"])
	}
	if !strings.HasPrefix(why["carol"], "in-band comes first") || !strings.HasPrefix(why["dave"], "a spare: one more bulk connection may expect 17.9 Mbit/s of carol, and it was not measured yet") {
		t.Errorf("%q", why)
	}
}

// Each cause of a candidate and of a rest has a code and words of its own. What would change a choice is said unless only
// time does.
func TestReasonsOfCandidates(t *testing.T) {
	codes, texts := make(map[string]bool), make(map[string]bool)
	add := func(r policy.CandidateReason) {
		c := path.Candidate{Detour: path.Detour{Kind: path.InBand, Waypoint: "bob"}, Reason: r}
		code, text := r.Code(), c.Why()
		if code == "" || codes[code] || text == "" || texts[text] {
			t.Errorf("cause %d, rest %d: code %q, words %q", r.Cause, r.Rest.Cause, code, text)
		}
		codes[code], texts[text] = true, true
		if onlyTime := r.Cause == policy.CandidateRests || r.Cause == policy.CandidateLoaded; (c.Change() == "") != onlyTime {
			t.Errorf("cause %d: %q would change it", r.Cause, c.Change())
		}
	}
	for cause := policy.CandidateChosen; cause <= policy.CandidateDrawn; cause++ {
		if cause != policy.CandidateRests {
			add(policy.CandidateReason{Cause: cause})
		}
	}
	for rest := policy.RestsFailed; rest <= policy.RestsSpent; rest++ {
		add(policy.CandidateReason{Cause: policy.CandidateRests, Rest: policy.Rest{Cause: rest, Err: errors.New("used up")}})
	}
}
