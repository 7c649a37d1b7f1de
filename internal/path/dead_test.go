package path_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// stream plays a connection with a message every 20 ms, in steps of a millisecond. Each path is used as Linux uses it: new
// messages go over subflows that are no backups, in turn. What is stuck on a dead path stays there until its subflow ends.
type stream struct {
	t         *testing.T
	m         *path.Manager
	now       time.Time
	lines     map[string]*streamLine // by waypoint; "" is the direct path
	subflows  []*streamed
	server    bool // the server sends
	port      uint16
	end, upTo uint64        // of the connection's data: sent, and received by this host in order
	brought   []uint64      // received out of order
	turns     int           // messages sent
	joins     []joining     // under way
	round     time.Time     // of the next samples
	closed    bool          // one end of the connection is closed, so this host's kernel opens no more subflows
	refuses   bool          // the server accepts no join on the direct path
	watches   int           // samples requested between rounds
	session   time.Duration // the round trip of a session with a waypoint near this host; zero: none is reported
	latest    time.Duration // as the session last measured it
	asked     time.Time     // when it was last measured without an answer so far
	places    int           // the number of subflows that the server accepts beside the first; zero: all
	ghosts    []uint8       // ended subflows that the server still counts if places is set, because no REMOVE_ADDR has arrived
	removals  int           // so many of the next REMOVE_ADDRs are lost
	paused    bool          // nobody sends
	lose      int           // so many of the next messages that are sent are lost
	log       []string      // what the Manager did, with the time since the death
	died      time.Time     // when the last path died
	every     time.Duration // time between messages
}

// streamLine is a path.
type streamLine struct {
	trip time.Duration
	dead bool
}

// streamed is a subflow.
type streamed struct {
	waypoint             string
	id                   uint8
	local, remote        netip.AddrPort
	backup               bool
	sent                 []time.Time // messages without an answer
	lost                 []time.Time // those of them that are lost
	under                []message   // on the way to this host
	segments, acked, out uint64
	dataEnd              uint64
	lastData, lastAnswer time.Time
	lastSent             time.Time
	full                 time.Time // when it is fully established. Until then it carries nothing, and its priority cannot be changed
}

// joining is a subflow whose handshake is under way. If its SYN is lost, it is sent again later and later.
type joining struct {
	*streamed
	at       time.Time // when the SYN is sent, or answered
	again    time.Duration
	answered bool
}

type message struct {
	at  time.Time // when it arrives
	end uint64
}

const messageBytes = 1000

// newStream returns a stream that has run for 20 s. The operator has said that it carries messages.
func newStream(t *testing.T, server bool, lines map[string]*streamLine, waypoints ...string) *stream {
	t.Helper()
	s := beginStream(t, server, lines, []uint16{80}, waypoints...)
	s.run(20 * time.Second)
	return s
}

func beginStream(t *testing.T, server bool, lines map[string]*streamLine, messages []uint16, waypoints ...string) *stream {
	t.Helper()
	s := &stream{t: t, now: birth, lines: lines, server: server, port: 40000, every: 20 * time.Millisecond}
	s.m = path.New(path.Config{Policy: policy.Detours{Subflows: 1 + len(waypoints)}, ByWorth: true, Seed: 1, MessagePorts: messages})
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	for _, w := range waypoints {
		s.offer(w)
	}
	s.connect(s.port)
	return s
}

// connect begins a connection from a port.
func (s *stream) connect(port uint16) {
	first := &streamed{local: netip.AddrPortFrom(ip("me"), port), remote: netip.AddrPortFrom(ip("web"), 80), lastData: s.now, lastAnswer: s.now, lastSent: s.now}
	s.subflows = []*streamed{first}
	s.tell(path.ConnEstablished{Token: 1, Local: first.local, Remote: first.remote})
}

// offer offers a detour through a waypoint.
func (s *stream) offer(w string) {
	s.tell(path.DetourOffered{Detour: path.Detour{ID: path.DetourID(w), Kind: path.InBand, Waypoint: w, Remote: netip.AddrPortFrom(ip(w), 0)}})
}

func (s *stream) tell(ev path.Event) {
	var follow []path.Event
	for _, a := range slices.Clone(s.m.Handle(ev, s.now)) {
		switch a := a.(type) {
		case path.CreateSubflow:
			if a.Token != 1 {
				continue
			}
			s.port++
			x := &streamed{
				waypoint: a.Waypoint, id: a.LocalID, local: netip.AddrPortFrom(ip("me"), s.port), remote: a.Remote, backup: a.Backup,
				lastData: s.now, lastAnswer: s.now, lastSent: s.now,
			}
			s.note("join %s", name(a.Waypoint))
			if s.closed {
				follow = append(follow, path.CreateFailed{Token: 1, LocalID: a.LocalID, Err: syscall.ENOTCONN, HalfClosed: true})
				continue
			}
			follow = append(follow, path.SubflowRequested{Token: 1, LocalID: a.LocalID, Local: x.local})
			switch {
			case a.Waypoint == "" && s.refuses:
				follow = append(follow, path.SubflowClosed{Token: 1, LocalID: a.LocalID, Local: x.local, Remote: a.Remote})
			default:
				s.joins = append(s.joins, joining{streamed: x, at: s.now, again: time.Second})
			}
		case path.DestroySubflow:
			s.joins = slices.DeleteFunc(s.joins, func(j joining) bool { return j.local == a.Local })
			if x := s.find(a.Local); x != nil {
				s.note("end %s", name(x.waypoint))
				s.subflows = slices.DeleteFunc(s.subflows, func(y *streamed) bool { return x == y })
				s.ghosts = append(s.ghosts, x.id)
				s.again(x)
			}
		case path.RemoveAddr:
			s.note("remove %d", a.LocalID)
			if s.removals > 0 {
				s.removals--
			} else {
				s.ghosts = slices.DeleteFunc(s.ghosts, func(id uint8) bool { return id == a.LocalID })
			}
		case path.SetBackup:
			if x := s.find(a.Local); x != nil && x.backup != a.Backup && !s.now.Before(x.full) {
				s.note("%s %s", map[bool]string{true: "demote", false: "promote"}[a.Backup], name(x.waypoint))
				x.backup = a.Backup
			}
		case path.Watch:
			s.watches++
			follow = append(follow, s.measureSession()...)
			follow = append(follow, s.samples())
		case path.Measure:
			if x := s.find(a.Local); x != nil {
				follow = append(follow, path.Measured{Samples: []path.Sample{s.sample(x)}})
			}
		}
	}
	for _, ev := range follow {
		s.tell(ev)
	}
}

func (s *stream) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%d ms: ", s.now.Sub(s.died).Milliseconds())+fmt.Sprintf(format, args...))
}

// over returns the subflow through a waypoint, or nil.
func (s *stream) over(waypoint string) *streamed {
	for _, x := range s.subflows {
		if x.waypoint == waypoint {
			return x
		}
	}
	return nil
}

func (s *stream) find(local netip.AddrPort) *streamed {
	for _, x := range s.subflows {
		if x.local == local {
			return x
		}
	}
	return nil
}

// again sends what was stuck on an ended subflow over another.
func (s *stream) again(x *streamed) {
	i := slices.IndexFunc(s.subflows, func(y *streamed) bool { return !s.lines[y.waypoint].dead })
	if i < 0 {
		return
	}
	y := s.subflows[i]
	for _, m := range x.under {
		y.under = append(y.under, message{s.now.Add(s.lines[y.waypoint].trip), m.end})
	}
}

// send sends a message over the next subflow that is no backup.
func (s *stream) send() {
	var uses []*streamed
	for _, x := range s.subflows {
		if !x.backup && !s.now.Before(x.full) {
			uses = append(uses, x)
		}
	}
	if len(uses) == 0 {
		return
	}
	s.turns++
	x := uses[s.turns%len(uses)]
	if s.server {
		s.end += messageBytes
		x.under = append(x.under, message{s.now.Add(s.lines[x.waypoint].trip / 2), s.end})
		return
	}
	x.out++
	x.lastSent = s.now
	x.sent = append(x.sent, s.now)
	if s.lose > 0 {
		s.lose--
		x.lost = append(x.lost, s.now)
	}
}

// run lets time pass.
func (s *stream) run(long time.Duration) {
	for end := s.now.Add(long); s.now.Before(end); s.now = s.now.Add(time.Millisecond) {
		s.join()
		if !s.paused && s.now.Sub(birth)%s.every == 0 {
			s.send()
		}
		for _, x := range s.subflows {
			if line := s.lines[x.waypoint]; !line.dead {
				x.arrive(s, line)
			}
		}
		for at, ok := s.m.Next(); ok && !at.After(s.now); at, ok = s.m.Next() {
			s.tell(path.Tick{})
		}
		if !s.now.Before(s.round) {
			s.round = s.now.Add(dt)
			s.tell(s.samples())
		}
	}
}

// join establishes the subflows whose handshakes are over.
func (s *stream) join() {
	for i := range s.joins {
		j := &s.joins[i]
		line := s.lines[j.waypoint]
		switch {
		case j.answered || s.now.Before(j.at):
		case line.dead:
			j.at, j.again = s.now.Add(j.again), 2*j.again
		default:
			j.at, j.answered = s.now.Add(line.trip), true
		}
	}
	for len(s.joins) > 0 {
		i := slices.IndexFunc(s.joins, func(j joining) bool { return j.answered && !s.now.Before(j.at) })
		if i < 0 {
			return
		}
		j := s.joins[i]
		s.joins = slices.Delete(s.joins, i, i+1)
		j.full = s.now.Add(s.lines[j.waypoint].trip)
		j.lastData, j.lastAnswer, j.lastSent = s.now, s.now, s.now
		beside := len(s.ghosts)
		for _, x := range s.subflows {
			if x.id != 0 {
				beside++
			}
		}
		s.subflows = append(s.subflows, j.streamed)
		s.tell(path.SubflowEstablished{Token: 1, LocalID: j.id, Local: j.local, Remote: j.remote})
		if s.places > 0 && beside >= s.places {
			s.subflows = slices.DeleteFunc(s.subflows, func(x *streamed) bool { return x == j.streamed })
			s.tell(path.SubflowClosed{Token: 1, LocalID: j.id, Local: j.local, Remote: j.remote})
		}
	}
}

// arrive lets arrive what is due.
func (x *streamed) arrive(s *stream, line *streamLine) {
	x.sent = slices.DeleteFunc(x.sent, func(at time.Time) bool {
		if s.now.Sub(at) < line.trip || slices.Contains(x.lost, at) && s.now.Sub(at) < 2*line.trip+200*time.Millisecond {
			return false
		}
		x.acked += messageBytes
		x.segments++
		x.lastAnswer = s.now
		return true
	})
	x.under = slices.DeleteFunc(x.under, func(m message) bool {
		if m.at.After(s.now) {
			return false
		}
		x.segments++
		x.lastData, x.lastAnswer, x.dataEnd = s.now, s.now, m.end
		s.brought = append(s.brought, m.end)
		slices.Sort(s.brought)
		for len(s.brought) > 0 && s.brought[0] <= s.upTo+messageBytes {
			s.upTo, s.brought = max(s.upTo, s.brought[0]), s.brought[1:]
		}
		return true
	})
}

// measureSession reports the session and begins to measure it again. It has no answer while all paths are dead, because this
// host is cut off then.
func (s *stream) measureSession() (report []path.Event) {
	if s.session == 0 {
		return nil
	}
	cutOff := true
	for _, line := range s.lines {
		cutOff = cutOff && line.dead
	}
	if s.latest == 0 {
		s.latest = s.session
	}
	switch {
	case s.asked.IsZero():
		s.asked = s.now
	case !cutOff && s.now.Sub(s.asked) >= s.session:
		s.latest, s.asked = s.session+s.latest%time.Microsecond+1, s.now
	}
	return []path.Event{path.WaypointMeasured{Waypoint: "near", Addr: ip("carol"), RTT: s.session, Latest: s.latest}}
}

// samples returns the counters of all subflows.
func (s *stream) samples() path.Measured {
	ev := path.Measured{Progress: []path.Progress{{Token: 1, Received: s.upTo}}}
	for _, x := range s.subflows {
		ev.Samples = append(ev.Samples, s.sample(x))
	}
	return ev
}

// sample returns the counters of a subflow.
func (s *stream) sample(x *streamed) path.Sample {
	trip, data := s.lines[x.waypoint].trip, uint64(0)
	if s.server {
		data = x.segments
	}
	return path.Sample{
		Token: 1, Local: x.local, Remote: x.remote, BytesReceived: messageBytes * data, BytesAcked: x.acked, Unacked: len(x.sent),
		MinRTT: trip, RTT: trip, ReceiverRTT: trip, DataSegsOut: uint32(x.out), SegsIn: x.segments, DataSegsIn: data, DataEnd: x.dataEnd,
		LastData: s.now.Sub(x.lastData), LastAnswer: s.now.Sub(x.lastAnswer), LastSent: s.now.Sub(x.lastSent),
	}
}

// kill makes a path drop everything from now on.
func (s *stream) kill(waypoint string) {
	s.lines[waypoint].dead, s.died, s.log = true, s.now, nil
}

// happened returns when the Manager first did this, or -1 if it did not.
func (s *stream) happened(what string) int64 {
	for _, line := range s.log {
		if at, did, _ := strings.Cut(line, " ms: "); did == what {
			ms := int64(0)
			fmt.Sscan(at, &ms)
			return ms
		}
	}
	return -1
}

func lines(direct, bob time.Duration) map[string]*streamLine {
	return map[string]*streamLine{"": {trip: direct}, "bob": {trip: bob}}
}

// The path that carries messages dies. Its subflow ends in time for the next messages to arrive within three of its round
// trips and 200 ms, or 450 ms if the server sends. Without a session that shows that this host is not cut off, the former is
// 400 ms.
func TestMessagesLeaveDeadPath(t *testing.T) {
	const ms = time.Millisecond
	for _, server := range []bool{false, true} {
		for _, trip := range []time.Duration{30 * ms, 60 * ms, 90 * ms} {
			for _, dies := range []string{"", "bob"} {
				for after := range 10 {
					t.Run(fmt.Sprintf("server sends %v, %v, %s, %d", server, trip, name(dies), after), func(t *testing.T) {
						paths, other := lines(trip, 130*ms), "bob"
						if dies == "bob" {
							paths, other = lines(130*ms, trip), ""
						}
						s := newStream(t, server, paths, "bob")
						more := 400 * ms
						if after >= 5 {
							s.session, more = 35*ms, 200*ms
						}
						s.run(time.Duration(after%5) * 21 * ms)
						s.kill(dies)
						s.run(time.Second)
						most := 3*trip + more - 65*ms
						if server {
							most = 3*trip + 450*ms - 130*ms
						}
						ends := s.happened("end " + name(dies))
						if up := s.happened("promote " + name(other)); ends < 0 || up < 0 || up > ends || ends > most.Milliseconds() {
							t.Errorf("called up after %d ms, ended after %d, at most %v: %v", up, ends, most, s.log)
						}
						if s.happened("remove 0") < 0 && dies == "" {
							t.Errorf("the server is not told: %v", s.log)
						}
					})
				}
			}
		}
	}
}

// The direct path works again. The connection goes on over it, with another subflow.
func TestDirectPathReturnsAfterDeath(t *testing.T) {
	for _, down := range []time.Duration{300 * time.Millisecond, time.Second, 5 * time.Second, 20 * time.Second} {
		t.Run(fmt.Sprintf("dies for %v", down), func(t *testing.T) {
			s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
			s.kill("")
			s.run(down)
			if down > 300*time.Millisecond && s.happened("end direct") < 0 {
				t.Fatal("the direct path did not end")
			}
			s.lines[""].dead = false
			s.run(20 * time.Second)
			if direct, bob := s.over(""), s.over("bob"); direct == nil || direct.backup || bob == nil || !bob.backup {
				t.Errorf("the messages do not return to the direct path: %v", s.log)
			}
		})
	}
}

// The direct path works again after minutes. The messages return to it within half a minute, as to a path that stays and is probed.
func TestDirectPathReturnsAfterLongDeath(t *testing.T) {
	for _, down := range []time.Duration{time.Minute, 3 * time.Minute, 5 * time.Minute, 10 * time.Minute} {
		s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
		s.kill("")
		s.run(down)
		s.lines[""].dead = false
		s.run(35 * time.Second)
		if direct, bob := s.over(""), s.over("bob"); direct == nil || direct.backup || bob == nil || !bob.backup {
			t.Errorf("after %v, the messages do not return to the direct path: %v", down, s.log)
		}
	}
}

// All paths pause together, because this host's link does. No subflow ends, so the messages go on over the direct path at once.
func TestPauseOfAllPathsEndsNone(t *testing.T) {
	for _, server := range []bool{false, true} {
		for _, down := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second} {
			t.Run(fmt.Sprintf("server sends %v, for %v", server, down), func(t *testing.T) {
				s := newStream(t, server, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
				s.session = 15 * time.Millisecond
				s.kill("")
				s.lines["bob"].dead = true
				s.run(down)
				s.lines[""].dead, s.lines["bob"].dead = false, false
				s.run(10 * time.Second)
				if s.happened("end direct") >= 0 {
					t.Errorf("the direct path ended: %v", s.log)
				}
			})
		}
	}
}

// None of this shows that a path is dead.
func TestPathsThatAreNotDead(t *testing.T) {
	for name, happens := range map[string]func(s *stream){
		"single losses": func(s *stream) {
			for range 20 {
				s.lose = 1
				s.run(500 * time.Millisecond)
			}
		},
		"rare messages, of which single ones are lost": func(s *stream) {
			s.every = 500 * time.Millisecond
			for range 20 {
				s.lose = 1
				s.run(time.Second)
			}
		},
		"pauses": func(s *stream) {
			for range 20 {
				s.paused = true
				s.run(600 * time.Millisecond)
				s.paused = false
				s.run(2 * time.Second)
			}
		},
		"the detour dies, which stands by": func(s *stream) {
			s.lines["bob"].dead = true
			s.run(3 * time.Second)
		},
	} {
		for _, server := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, server sends %v", name, server), func(t *testing.T) {
				s := newStream(t, server, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
				s.log = nil
				happens(s)
				if s.happened("end direct") >= 0 {
					t.Errorf("the direct path ended: %v", s.log)
				}
			})
		}
	}
}

// A REMOVE_ADDR was lost, so the server still counts the direct path that ended, and has no place for the new one. That does not
// show that it refuses the direct path: the next time that messages are stuck on it, it ends again.
func TestLostRemoveAddrIsNoRefusal(t *testing.T) {
	s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
	s.session, s.places = 35*time.Millisecond, 2
	for i, down := range []time.Duration{time.Second, 190 * time.Millisecond, time.Second} {
		if i == 1 {
			s.removals = 1
		}
		s.kill("")
		s.run(down)
		s.lines[""].dead = false
		s.run(time.Second)
		if s.happened("end direct") < 0 {
			t.Fatalf("%d: the direct path did not end: %v", i, s.log)
		}
		s.run(30 * time.Second)
		if direct := s.over(""); direct == nil || direct.backup {
			t.Fatalf("%d: the messages do not return to the direct path: %v", i, s.log)
		}
	}
}

// A server that may not accept the direct path again keeps it: one that perhaps has no place for it, and one that refused it
// before.
func TestDirectPathThatMayNotReturnStays(t *testing.T) {
	t.Run("no place", func(t *testing.T) {
		paths := lines(30*time.Millisecond, 130*time.Millisecond)
		paths["carol"] = &streamLine{trip: 140 * time.Millisecond}
		s := newStream(t, false, paths, "bob", "carol")
		s.kill("")
		s.run(3 * time.Second)
		if s.happened("end direct") >= 0 {
			t.Errorf("the direct path ended: %v", s.log)
		}
	})
	t.Run("refused", func(t *testing.T) {
		s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
		s.kill("")
		s.refuses = true
		s.run(3 * time.Second)
		if s.happened("end direct") < 0 {
			t.Fatal("the direct path did not end")
		}
		s.tell(path.ConnClosed{Token: 1})
		s.lines[""].dead = false
		s.connect(39999)
		s.run(20 * time.Second)
		s.kill("")
		s.run(3 * time.Second)
		if s.happened("promote bob") < 0 || s.happened("end direct") >= 0 {
			t.Errorf("the direct path of the next connection ended: %v", s.log)
		}
	})
}

// The server is due to be asked whether it accepts more subflows. That does not give the direct path a place.
func TestDirectPathStaysThoughPlacesAreToBeChecked(t *testing.T) {
	const ms = time.Millisecond
	paths := lines(30*ms, 130*ms)
	paths["carol"], paths["dave"] = &streamLine{trip: 140 * ms}, &streamLine{trip: 150 * ms}
	s := beginStream(t, false, paths, []uint16{80}, "bob", "carol", "dave")
	s.places = 2
	s.run(20 * time.Second)
	s.tell(path.DetourWithdrawn{ID: "dave"})
	s.now = s.now.Add(15 * time.Minute)
	s.run(20 * time.Second)
	s.kill("")
	s.run(3 * time.Second)
	if s.happened("end direct") >= 0 {
		t.Errorf("the direct path ended: %v", s.log)
	}
}

// The server refused a subflow once, which does not show for certain how many it accepts.
func TestDirectPathStaysAfterOneRefusal(t *testing.T) {
	const ms = time.Millisecond
	paths := lines(30*ms, 130*ms)
	paths["carol"] = &streamLine{trip: 140 * ms}
	s := beginStream(t, false, paths, []uint16{80}, "bob", "carol")
	s.places = 1
	s.run(600 * ms)
	s.tell(path.DetourWithdrawn{ID: "carol"})
	s.run(20 * time.Second)
	s.kill("")
	s.run(3 * time.Second)
	if s.happened("promote bob") < 0 || s.happened("end direct") >= 0 {
		t.Errorf("the direct path ended: %v", s.log)
	}
}

// streamWithLateCarol begins a stream over the direct path and bob. carol does not work and is not on offer.
func streamWithLateCarol(t *testing.T) (*stream, map[string]*streamLine) {
	const ms = time.Millisecond
	paths := lines(30*ms, 130*ms)
	paths["carol"] = &streamLine{trip: 140 * ms, dead: true}
	s := beginStream(t, false, paths, []uint16{80}, "bob", "carol")
	s.tell(path.DetourWithdrawn{ID: "carol"})
	return s, paths
}

// While the direct path does not work, another detour becomes usable. It does not take the place of the direct path.
func TestDetourLeavesPlaceToDirectPath(t *testing.T) {
	s, paths := streamWithLateCarol(t)
	s.places = 2
	s.run(25 * time.Second)
	s.kill("")
	s.run(time.Second)
	if s.happened("end direct") < 0 {
		t.Fatal("the direct path did not end")
	}
	paths["carol"].dead = false
	s.offer("carol")
	s.run(20 * time.Second)
	paths[""].dead = false
	s.run(20 * time.Second)
	if direct := s.over(""); direct == nil || direct.backup {
		t.Errorf("the direct path does not carry: %v", s.log)
	}
}

// The direct path ended, and the server refuses to let it join again. Another detour takes its place, so that the connection does
// not depend on a single path.
func TestDetourTakesPlaceOfRefusedDirectPath(t *testing.T) {
	s, paths := streamWithLateCarol(t)
	s.run(25 * time.Second)
	s.refuses = true
	s.kill("")
	s.run(time.Second)
	if s.happened("end direct") < 0 {
		t.Fatal("the direct path did not end")
	}
	paths["carol"].dead = false
	s.offer("carol")
	s.run(20 * time.Second)
	if s.over("carol") == nil {
		t.Errorf("the connection has one path: %v", s.log)
	}
}

// The direct path fails again and again for a moment. The messages return to it as soon as it works.
func TestMessagesReturnAfterShortDeaths(t *testing.T) {
	s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
	ends := 0
	for range 8 {
		s.kill("")
		s.run(1500 * time.Millisecond)
		s.lines[""].dead = false
		s.run(8 * time.Second)
		if s.happened("end direct") >= 0 {
			ends++
		}
		if direct, bob := s.over(""), s.over("bob"); direct == nil || direct.backup || bob == nil || !bob.backup {
			t.Errorf("after %d ends, the messages do not go over the direct path: %v", ends, s.log)
		}
		s.run(2 * time.Minute)
	}
	if ends < 5 {
		t.Errorf("the direct path ended only %d times", ends)
	}
}

// The agent is late: the time of the next sample comes and goes before a round of samples. The connection is not sampled again at
// the same time.
func TestLateRoundTakesPlaceOfPlannedSample(t *testing.T) {
	s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
	s.kill("")
	s.run(120 * time.Millisecond)
	if s.happened("promote bob") >= 0 {
		t.Fatal("the detour was called up already")
	}
	before := s.watches
	s.now = s.now.Add(100 * time.Millisecond)
	s.tell(s.samples())
	if s.happened("promote bob") < 0 || s.watches != before {
		t.Errorf("%d more samples: %v", s.watches-before, s.log)
	}
}

// The server sends. After the first death was real, the second is noticed as early.
func TestSecondDeathIsNoticedAsEarly(t *testing.T) {
	s := newStream(t, true, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
	for range 3 {
		s.kill("")
		s.run(time.Second)
		if ends := s.happened("end direct"); ends < 0 || ends > 450 {
			t.Errorf("the direct path ended after %d ms: %v", ends, s.log)
		}
		s.lines[""].dead = false
		s.run(7 * time.Second)
	}
}

// The kernel opens no more subflows because one end of the connection is closed. A subflow that ended would be missed.
func TestHalfClosedConnectionKeepsSubflows(t *testing.T) {
	const ms = time.Millisecond
	paths := lines(30*ms, 130*ms)
	paths["carol"] = &streamLine{trip: 140 * ms}
	s := beginStream(t, false, paths, []uint16{80}, "bob", "carol")
	s.tell(path.DetourWithdrawn{ID: "carol"})
	s.run(20 * time.Second)
	s.tell(path.SubflowClosed{Token: 1, LocalID: s.over("carol").id, Local: s.over("carol").local, Remote: s.over("carol").remote})
	s.subflows = slices.DeleteFunc(s.subflows, func(x *streamed) bool { return x.waypoint == "carol" })
	s.run(5 * time.Second)
	s.closed = true
	s.offer("carol")
	s.run(20 * time.Second)
	s.kill("")
	s.run(3 * time.Second)
	if s.happened("promote bob") < 0 || s.happened("end direct") >= 0 {
		t.Errorf("the direct path ended: %v", s.log)
	}
}

// There are more connections than each round has time for. Then none is sampled between rounds, but a death is still noticed.
func TestBusyHostPlansNoSamplesBetweenRounds(t *testing.T) {
	s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
	s.tell(path.ConnEstablished{Token: 2, Local: netip.AddrPortFrom(ip("me"), 39000), Remote: netip.AddrPortFrom(ip("web"), 80)})
	s.tell(path.SubflowEstablished{Token: 2, LocalID: 1, Local: netip.AddrPortFrom(ip("me"), 39001), Remote: netip.AddrPortFrom(ip("bob"), 80)})
	for range s.m.Watched(s.now, 1) {
	}
	if state := s.m.Snapshot(s.now).Sampling; state.Active != 2 || state.Measured != 1 {
		t.Fatalf("sampling: %+v", state)
	}
	s.kill("")
	s.run(time.Second)
	if ends := s.happened("end direct"); s.watches > 0 || ends < 0 || ends > 600 {
		t.Errorf("%d samples between rounds, the direct path ended after %d ms: %v", s.watches, ends, s.log)
	}
}

// As long as answers come, a stream is not sampled between rounds.
func TestAnsweredStreamsAreNotSampledBetweenRounds(t *testing.T) {
	for _, server := range []bool{false, true} {
		for _, trip := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 120 * time.Millisecond} {
			s := newStream(t, server, lines(trip, 2*trip), "bob")
			s.watches = 0
			s.run(10 * time.Second)
			if s.watches > 0 {
				t.Errorf("server sends %v, %v: %d samples between rounds", server, trip, s.watches)
			}
		}
	}
}

// Some of the messages are under way when a round of samples comes. That is no reason to sample until their answers are there.
func TestRareMessagesCostFewSamplesBetweenRounds(t *testing.T) {
	s := newStream(t, false, lines(120*time.Millisecond, 240*time.Millisecond), "bob")
	s.every = 500 * time.Millisecond
	s.watches = 0
	s.run(time.Minute)
	if messages := int(time.Minute / s.every); s.watches > messages {
		t.Errorf("%d samples between rounds for %d messages", s.watches, messages)
	}
}

// A connection that existed before the Manager is left alone, so nothing needs samples of it between rounds.
func TestAdoptedConnectionIsNotSampledBetweenRounds(t *testing.T) {
	s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
	live := path.LiveConn{Token: 1, Local: s.subflows[0].local, Remote: s.subflows[0].remote}
	for _, x := range s.subflows {
		live.Subflows = append(live.Subflows, path.LiveSubflow{LocalID: x.id, Local: x.local, Remote: x.remote, Backup: x.backup})
	}
	s.m = path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true, Seed: 1, MessagePorts: []uint16{80}})
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	s.offer("bob")
	s.tell(path.Resync{Conns: []path.LiveConn{live}})
	s.run(5 * time.Second)
	s.watches = 0
	s.kill("")
	s.run(2 * time.Second)
	if s.watches > 0 || s.happened("end direct") >= 0 {
		t.Errorf("%d samples between rounds: %v", s.watches, s.log)
	}
}

// This host is cut off while a program goes on sending. After a moment, rounds of samples are enough.
func TestCutOffHostIsNotSampledBetweenRoundsForLong(t *testing.T) {
	s := newStream(t, false, lines(30*time.Millisecond, 130*time.Millisecond), "bob")
	s.kill("")
	s.lines["bob"].dead = true
	s.run(3 * time.Second)
	s.watches = 0
	s.run(time.Minute)
	if s.watches > 0 {
		t.Errorf("%d samples between rounds", s.watches)
	}
}
