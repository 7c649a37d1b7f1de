package path_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// download plays the samples of a connection that receives over the direct path and a detour, in virtual time.
// Nothing else is modelled.
type download struct {
	t        *testing.T
	m        *path.Manager
	start    time.Time
	now      time.Time
	random   *rand.Rand
	direct   arrivals
	detour   arrivals
	data     uint64 // of the connection that arrived without a gap
	port     uint16
	actions  []string // actions of the manager on the detour
	up       bool     // the first detour exists
	backup   bool
	second   bool // a detour through another waypoint has its place
	hole     bool
	lossRate float64

	suspicions int
	hushes     []time.Duration // when probes of the direct path were turned on; 0: off
	created    []path.SubflowEstablished
}

// arrivals describes one subflow.
type arrivals struct {
	local, remote        netip.AddrPort
	segments, data, late uint64
	end, acked           uint64
	lastData, lastAnswer time.Time
	lastProbe            time.Time
	unanswered           int
	probing, gap         bool
}

const (
	dt  = 100 * time.Millisecond
	rtt = 40 * time.Millisecond
)

func newDownload(t *testing.T) *download {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d := &download{t: t, m: path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), start: start, now: start, random: rand.New(rand.NewPCG(1, 2)), port: 50000}
	server := netip.AddrPortFrom(ip("web"), 80)
	for _, waypoint := range []string{"bob", "carol"} {
		d.tell(path.DetourOffered{Detour: path.Detour{
			ID: path.DetourID(waypoint), Kind: path.InBand, Waypoint: waypoint, Remote: netip.AddrPortFrom(ip(waypoint), 0),
		}})
	}
	d.direct = arrivals{local: netip.AddrPortFrom(ip("me"), 5000), remote: server, lastData: start, lastAnswer: start}
	d.tell(path.ConnEstablished{Token: 1, Local: d.direct.local, Remote: server})
	if !d.up {
		t.Fatal("no detour was taken")
	}
	return d
}

func (d *download) since() time.Duration { return d.now.Sub(d.start) }

func (d *download) tell(ev path.Event) {
	var follow []path.Event // the kernel's answers to the actions
	for _, a := range d.m.Handle(ev, d.now) {
		switch a := a.(type) {
		case path.CreateSubflow:
			d.port++
			local := netip.AddrPortFrom(ip("me"), d.port)
			up := path.SubflowEstablished{Token: 1, LocalID: a.LocalID, Local: local, Remote: a.Remote}
			follow = append(follow, path.SubflowRequested{Token: 1, LocalID: a.LocalID, Local: local}, up)
			d.created = append(d.created, up)
			if !d.up && d.detour.remote == (netip.AddrPort{}) {
				d.up = true
				d.detour = arrivals{local: local, remote: a.Remote, lastData: d.now, lastAnswer: d.now}
			} else {
				d.second = true
				d.note("replaced")
			}
		case path.DestroySubflow:
			d.up = false
			d.note("closed")
		case path.SetBackup:
			d.backup = a.Backup
			d.note(map[bool]string{true: "demoted", false: "promoted"}[a.Backup])
		case path.Probe:
			if a.Local == d.direct.local {
				d.direct.probing = a.On
				d.hushes = append(d.hushes, map[bool]time.Duration{true: d.since()}[a.On])
			} else {
				d.detour.probing = a.On
				if a.On {
					d.suspicions++
				}
			}
		}
	}
	for _, ev := range follow {
		d.tell(ev)
	}
}

func (d *download) note(what string) {
	d.actions = append(d.actions, fmt.Sprintf("%v %s", d.since(), what))
}

// arrive lets n segments with data arrive on a subflow, up to end in the connection's data.
func (d *download) arrive(a *arrivals, n uint64, end uint64) {
	if n > 0 {
		a.segments, a.data, a.end = a.segments+n, a.data+n, end
		a.lastData, a.lastAnswer, a.unanswered = d.now, d.now, 0
	}
}

// acknowledge lets acknowledgements of n segments that this host sent arrive on a subflow.
func (d *download) acknowledge(a *arrivals, n uint64) {
	a.segments, a.acked = a.segments+n, a.acked+1400*n
	a.lastAnswer, a.unanswered = d.now, 0
}

// step lets a tenth of a second pass, after arrive has told what arrived in it.
func (d *download) step() {
	d.now = d.now.Add(dt)
	if d.direct.probing {
		d.keepAlive(&d.direct)
	}
	if d.detour.probing && d.up {
		d.keepAlive(&d.detour)
	}
	for {
		at, ok := d.m.Next()
		if !ok || at.After(d.now) {
			break
		}
		d.tell(path.Tick{})
	}
	ev := path.Measured{Samples: []path.Sample{d.sample(&d.direct)}, Progress: []path.Progress{{Token: 1, Received: d.data}}}
	if d.up {
		ev.Samples = append(ev.Samples, d.sample(&d.detour))
	}
	watched := false
	for range d.m.Watched(d.now, 10) {
		watched = true
	}
	switch {
	case d.since()%time.Second == 0: // of all subflows, as the agent samples
		ev.Progress = nil
		d.tell(ev)
	case watched:
		d.tell(ev)
	}
}

// keepAlive plays the kernel's probes: one after each second in which nothing arrived and none was sent. A probe or
// its answer is lost as often as other packets.
func (d *download) keepAlive(a *arrivals) {
	if d.now.Sub(a.lastAnswer) < time.Second || d.now.Sub(a.lastProbe) < time.Second {
		return
	}
	a.unanswered++
	a.lastProbe = d.now
	if !d.hole && (d.lossRate == 0 || d.random.Float64() > 2*d.lossRate) {
		a.segments++
		a.lastAnswer, a.unanswered = d.now, 0
	}
}

func (d *download) sample(a *arrivals) path.Sample {
	return path.Sample{
		Token: 1, Local: a.local, Remote: a.remote, BytesReceived: 1400 * a.data, BytesAcked: a.acked, MinRTT: rtt,
		SegsIn: a.segments, DataSegsIn: a.data, OutOfOrder: a.late, Gap: a.gap, DataEnd: a.end, Probes: a.unanswered,
		LastData: d.now.Sub(a.lastData), LastAnswer: d.now.Sub(a.lastAnswer),
	}
}

// load describes what a server sends.
type load struct {
	name    string
	each    uint64        // segments on each path
	every   time.Duration // at this interval
	gap     time.Duration // the connection's data stands still for this time after a hole
	demoted time.Duration // at the latest after the path broke
}

var loads = []load{
	{"bulk", 80, dt, 450 * time.Millisecond, time.Second},
	{"bulk over short paths", 80, dt, 200 * time.Millisecond, time.Second},
	{"stream", 3, dt, 500 * time.Millisecond, time.Second},
	{"requests", 20, 300 * time.Millisecond, 0, 3 * time.Second},
}

// send lets one tenth of a second of the load arrive.
func (d *download) send(l load, overDetour bool, still bool) { d.sendOver(l, true, overDetour, still) }

func (d *download) sendOver(l load, overDirect, overDetour, still bool) {
	if d.since()%l.every != 0 {
		return
	}
	if overDirect {
		d.arrive(&d.direct, l.each, d.data+1400*2*l.each)
	}
	if overDetour {
		d.arrive(&d.detour, l.each, d.data+1400*l.each)
	}
	if !still {
		d.data += 1400 * 2 * l.each
	}
}

func TestHoleIsFoundOut(t *testing.T) {
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			d := newDownload(t)
			for d.since() < 10*time.Second {
				d.send(l, true, false)
				d.step()
			}
			if len(d.actions) > 0 {
				t.Fatalf("while all was well: %v", d.actions)
			}
			d.hole = true
			broke, demoted, replaced := d.since(), time.Duration(0), time.Duration(0)
			for d.since() < broke+10*time.Second && replaced == 0 {
				d.send(l, false, d.since() < broke+l.gap)
				d.step()
				if d.backup && demoted == 0 {
					demoted = d.since() - broke
				}
				if d.second {
					replaced = d.since() - broke
				}
			}
			t.Logf("demoted after %v, replaced after %v", demoted, replaced)
			if demoted == 0 || demoted > l.demoted || replaced == 0 || replaced > 6*time.Second {
				t.Errorf("demoted after %v (at most %v), replaced after %v: %v", demoted, l.demoted, replaced, d.actions)
			}
		})
	}
}

// A connection that loses its only good detour first gives other waypoints time to offer one. Only then it tries the
// detour over which nothing arrived again.
func TestLastResortLetsOthersComeFirst(t *testing.T) {
	for name, dave := range map[string]bool{"nobody offers": false, "another offers": true} {
		t.Run(name, func(t *testing.T) {
			d, bulk := newDownload(t), loads[0]
			for d.since() < 10*time.Second {
				d.send(bulk, true, false)
				d.step()
			}
			d.hole = true
			for broke := d.since(); d.since() < broke+bulk.gap || d.up || !d.second; {
				d.send(bulk, false, d.since() < broke+bulk.gap)
				d.step()
			}
			for left := d.since(); d.since() < left+10*time.Second; { // then bob may be tried as a last resort
				d.send(bulk, false, false)
				d.step()
			}
			lost := d.since()
			carol := d.created[len(d.created)-1]
			d.created = nil
			d.tell(path.DetourWithdrawn{ID: "carol"})
			d.tell(path.SubflowClosed{Token: 1, LocalID: carol.LocalID, Local: carol.Local, Remote: carol.Remote, Err: syscall.ECONNRESET})
			for d.since() < lost+3*time.Second {
				if dave && d.since() == lost+500*time.Millisecond {
					d.tell(path.DetourOffered{Detour: path.Detour{ID: "dave", Kind: path.InBand, Waypoint: "dave", Remote: netip.AddrPortFrom(ip("dave"), 0)}})
				}
				if at := d.since() - lost; len(d.created) > 0 && !dave && at < time.Second {
					t.Fatalf("%v after the loss it took %v", at, d.created)
				}
				d.send(bulk, false, false)
				d.step()
			}
			if want := map[bool]netip.Addr{false: ip("bob"), true: ip("dave")}[dave]; len(d.created) == 0 || d.created[0].Remote.Addr() != want {
				t.Errorf("it took %v, want %v first", d.created, want)
			}
		})
	}
}

// lossy models one path's loss. A lost segment arrives a round trip later or, if the retransmission is lost, too,
// after timeouts that double. Until then, or until the server sends it over the other path, the connection's data
// stands still.
type lossy struct {
	rate    float64
	quiet   time.Duration   // nothing arrives until then
	still   time.Duration   // the connection's data does not advance until then
	repairs []time.Duration // when lost segments come again; each fills the oldest gap
}

func (p *lossy) send(d *download, a *arrivals, l load) {
	if d.since() < p.quiet || d.since()%l.every != 0 {
		return
	}
	lost, late := false, uint64(0)
	more := rand.New(rand.NewPCG(2, uint64(d.since()))) // for what is lost after the first
	for i := range l.each {
		at := d.since() + dt*time.Duration(i)/time.Duration(l.each)
		switch {
		case !lost && d.random.Float64() < p.rate, lost && more.Float64() < p.rate:
			lost = true
			p.repairs = append(p.repairs, at+rtt)
		case len(p.repairs) > 0 && p.repairs[0] <= at:
			p.repairs = p.repairs[1:]
		case len(p.repairs) > 0:
			late++
		}
	}
	a.late += late
	if !lost {
		return
	}
	if late == 0 {
		a.late++
	}
	if d.random.IntN(10) > 0 { // nine of ten show by what arrives after them
		return
	}
	timeout := 250 * time.Millisecond
	p.quiet = d.since() + timeout
	for d.random.Float64() < p.rate {
		timeout *= 2
		p.quiet += timeout
	}
	p.still = min(p.quiet, d.since()+450*time.Millisecond)
}

// This plays an hour of a detour that works: one that the server uses little or not at all, that waits for a program,
// and that loses packets, probes and answers to probes.
func TestHealthyDetourIsLeftAlone(t *testing.T) {
	// With these seeds, a path seems better than it is for a while by chance.
	seeds := []uint64{2, 12, 24, 36}
	if raceDetector {
		seeds = seeds[:1]
	}
	suspicions := 0
	defer func() {
		if suspicions < 250*len(seeds) {
			t.Errorf("%d suspicions: there was nothing to be wrong about", suspicions)
		}
	}()
	for _, l := range []load{loads[0], loads[2], loads[3]} {
		for name, uses := range map[string]func(d *download, at time.Duration) (direct, detour bool){
			"always":                 func(_ *download, at time.Duration) (bool, bool) { return true, true },
			"prefers the other path": func(_ *download, at time.Duration) (bool, bool) { return true, at%time.Minute < 20*time.Second },
			"now and then": func(_ *download, at time.Duration) (bool, bool) {
				return true, at%(2*time.Second) < 300*time.Millisecond
			},
			"has nothing to send": func(_ *download, at time.Duration) (bool, bool) {
				return at%time.Minute < 20*time.Second, at%time.Minute < 20*time.Second
			},
			"sends in bursts": func(_ *download, at time.Duration) (bool, bool) {
				on := at%(7*time.Second) < 2*time.Second
				return on, on
			},
			"pauses, and begins on the other path": func(_ *download, at time.Duration) (bool, bool) {
				on := at%(11*time.Second) < 6*time.Second
				return on, on && at%(11*time.Second) > 3*time.Second
			},
		} {
			for _, loss := range []float64{0, 0.05} {
				for _, seed := range seeds {
					t.Run(fmt.Sprintf("%s %s, %v lost, seed %d", l.name, name, loss, seed), func(t *testing.T) {
						d := newDownload(t)
						d.lossRate, d.random = loss, rand.New(rand.NewPCG(1, seed))
						detour, direct := lossy{rate: loss}, lossy{rate: 0.001}
						for d.since() < time.Hour {
							onDirect, onDetour := uses(d, d.since())
							onDetour = onDetour && !d.backup
							if onDetour {
								detour.send(d, &d.detour, l)
							}
							if onDirect {
								direct.send(d, &d.direct, l)
							}
							if onDirect || onDetour {
								d.sendOver(l, onDirect && d.since() >= direct.quiet, onDetour && d.since() >= detour.quiet, d.since() < max(detour.still, direct.still))
							}
							d.detour.gap = d.since() < detour.quiet
							d.step()
						}
						suspicions += d.suspicions
						if len(d.actions) > 0 {
							t.Errorf("%d times: %v", len(d.actions), d.actions[:min(5, len(d.actions))])
						}
					})
				}
			}
		}
	}
}

// A path that comes back is used again, and is suspected less easily.
func TestDetourComesBack(t *testing.T) {
	l := loads[0]
	d := newDownload(t)
	for d.since() < 30*time.Second {
		d.hole = d.since() >= 10*time.Second && d.since() < 12*time.Second
		d.send(l, !d.hole && !d.backup, d.hole && d.since() < 10*time.Second+l.gap)
		d.step()
	}
	if len(d.actions) != 2 || d.backup || !d.up {
		t.Errorf("want it demoted and promoted: %v", d.actions)
	}
}

// If all paths are silent, this host is cut off.
func TestAllPathsSilent(t *testing.T) {
	d := newDownload(t)
	for d.since() < time.Minute {
		if d.hole = d.since() >= 10*time.Second && d.since() < 40*time.Second; !d.hole {
			d.send(loads[0], true, false)
		}
		d.step()
	}
	if len(d.actions) > 0 {
		t.Errorf("%v", d.actions)
	}
}

// If all paths become silent together, the direct path is probed, less and less often if it answers.
func TestHushIsProbed(t *testing.T) {
	d, stop, hush := newDownload(t), 10*time.Second, 2*time.Second
	for d.since() < stop+4*time.Second {
		if d.since() < stop {
			d.send(loads[2], true, false)
		}
		d.step()
	}
	if len(d.hushes) != 2 || d.hushes[0] < stop+hush-dt || d.hushes[0] > stop+hush+dt || d.hushes[1] != 0 {
		t.Fatalf("the direct path was probed at %v, want once %v after the last data and ended by the answer", d.hushes, hush)
	}
	for d.since() < time.Hour {
		if d.since()%(20*time.Second) < 2*time.Second {
			d.send(loads[2], true, false)
		}
		d.step()
	}
	if n := len(d.hushes) / 2; n < 4 || n > 18 {
		t.Errorf("a server that pauses was probed %d times in an hour: %v", n, d.hushes)
	}
	if len(d.actions) > 0 {
		t.Errorf("%v", d.actions)
	}
}

// If a NAT forgets its connections, the server's end of all subflows is reset. A reset of the probe lets a new
// subflow join.
func TestHushFindsForgottenNAT(t *testing.T) {
	d, stop := newDownload(t), 800*time.Millisecond
	d.hole = true
	for d.since() < stop+3*time.Second && !d.direct.probing {
		if d.since() < stop {
			d.send(loads[2], true, false)
		}
		d.step()
	}
	if !d.direct.probing {
		t.Fatal("the direct path was not probed")
	}
	d.created = nil
	d.tell(path.SubflowClosed{Token: 1, Local: d.direct.local, Remote: d.direct.remote, Err: syscall.ECONNRESET})
	for at := d.since(); d.since() < at+3*time.Second; {
		d.step()
	}
	if !slices.ContainsFunc(d.created, func(e path.SubflowEstablished) bool { return e.Remote == d.direct.remote }) {
		t.Errorf("%v were opened, none to the server itself", d.created)
	}
}

// Without probes a bulk transfer gives up a dead detour later.
func TestHoleWithoutProbes(t *testing.T) {
	l := loads[0]
	d := newDownload(t)
	for d.since() < 40*time.Second && !d.second {
		d.hole = d.since() >= 10*time.Second
		d.send(l, !d.hole, d.hole && d.since() < 10*time.Second+l.gap)
		d.detour.probing = false
		d.step()
	}
	if !d.second {
		t.Errorf("the detour keeps its place: %v", d.actions)
	}
}

// Probes cannot begin while data is missing before what arrived. That nothing fills the gap proves the same.
func TestGapShowsHole(t *testing.T) {
	for _, gap := range []bool{false, true} {
		d, broke := newDownload(t), 1400*time.Millisecond
		for d.since() < broke+14*time.Second && !d.second {
			d.hole = d.since() >= broke
			d.detour.gap = gap && d.hole
			d.send(loads[2], !d.hole, false)
			d.detour.probing = false
			d.step()
		}
		switch took := d.since() - broke; {
		case !gap && d.second:
			t.Errorf("without a sign of a fault the detour was left after %v: %v", took, d.actions)
		case gap && (!d.second || took < 4*time.Second || took > 10*time.Second):
			t.Errorf("with a gap that nothing fills it was left after %v: %v", took, d.actions)
		}
	}
}

// An idle detour that has died is replaced, because the connection relies on it.
func TestIdleDetourIsProbed(t *testing.T) {
	t.Run("download", func(t *testing.T) {
		testIdleDetour(t, func(d *download) { d.sendOver(loads[0], true, false, false) })
	})
	t.Run("upload", func(t *testing.T) {
		testIdleDetour(t, func(d *download) { d.acknowledge(&d.direct, loads[0].each) })
	})
}

func testIdleDetour(t *testing.T, transfer func(*download)) {
	t.Helper()
	d := newDownload(t)
	send := func(until time.Duration) {
		for d.since() < until && !d.second {
			transfer(d)
			d.step()
		}
	}
	send(10 * time.Minute)
	if d.suspicions < 130 || d.suspicions > 150 {
		t.Errorf("an idle detour was probed %d times in ten minutes, want about every four seconds", d.suspicions)
	}
	if len(d.actions) > 0 {
		t.Fatalf("while it answered: %v", d.actions)
	}
	d.hole = true
	send(10*time.Minute + 30*time.Second)
	if !d.second || d.since() > 10*time.Minute+12*time.Second {
		t.Errorf("it died after ten minutes: %v", d.actions)
	}
}

// If no probes are sent, an idle detour keeps its place.
func TestIdleDetourWithoutProbes(t *testing.T) {
	d := newDownload(t)
	for d.since() < 10*time.Minute {
		d.sendOver(loads[0], true, false, false)
		d.detour.probing = false
		d.step()
	}
	if len(d.actions) > 0 {
		t.Errorf("%v", d.actions)
	}
}
