package chaos

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
	"github.com/detour-collective/dcol/lab/testbed"
)

// injector carries out the faults of a plan.
type injector struct {
	w       *world
	inspect inspector
	monitor *monitor
	traffic *twin.Pool
	liar    *attack.Waypoint // nil where nobody lies
	raw     *attack.Raw      // mallory's

	links      linkState
	settings   sync.Mutex // one change at a time
	excess     collector  // what attackers got that they should not have
	distrusted distrusted
}

// Strike is a fault as it happened.
type Strike struct {
	Fault plan.Fault `json:"fault"`
	// Hit names what it struck, such as the busiest waypoint.
	Hit string `json:"hit"`
	// Counts is set if what it struck had carried bytes in the second before.
	Counts bool      `json:"counts"`
	Began  time.Time `json:"began"`
	// Done is the time at which a change of the address or of a NAT was complete. It is zero for other faults.
	Done  time.Time `json:"done,omitzero"`
	Ended time.Time `json:"ended"`
	Note  string    `json:"note,omitempty"`
}

// inject carries a fault out from its beginning to its end. It returns an error if the lab failed, or if a process did
// not obey a signal.
func (s *injector) inject(ctx context.Context, f plan.Fault) (Strike, error) {
	k := Strike{Fault: f, Began: time.Now()}
	k.Hit, k.Counts = s.aim(f)
	err := s.carryOut(ctx, f, &k)
	k.Ended = time.Now()
	if err != nil {
		return k, fmt.Errorf("%v: %w", f, err)
	}
	return k, nil
}

// aim finds what a fault strikes, and whether that carried bytes just now.
func (s *injector) aim(f plan.Fault) (hit string, counts bool) {
	busy := s.monitor.busiest()
	if f.Kind.Spoils() {
		busy = s.distrusted.take(busy)
	}
	over := func(link string) (string, bool) { return link, s.monitor.carried(link) >= carrying }
	switch f.Target {
	case plan.Access:
		return over(accessLink)
	case plan.Direct:
		return over(directLink)
	case plan.BusyIn:
		return over(inLink(busy))
	case plan.BusyOut:
		return over(outLink(busy))
	case plan.Busy:
		return busy, s.monitor.carried(inLink(busy)) >= carrying && s.monitor.carried(outLink(busy)) >= carrying
	case plan.Client:
		return alice, s.monitor.carried(accessLink) >= carrying
	case plan.Router:
		return home, s.monitor.carried(accessLink) >= carrying
	case plan.Converter:
		return converter, s.monitor.carried(converter) >= carrying
	case plan.Server:
		return server, s.monitor.carried(rackLink) >= carrying
	case plan.Coordinator:
		return hub, s.monitor.carried(hub) >= talking
	}
	return "", false
}

// carryOut also notes the result in the strike, if it is of interest.
func (s *injector) carryOut(ctx context.Context, f plan.Fault, k *Strike) error {
	change := linkChange(f)
	switch {
	case f.Kind == plan.LinkDown:
		return s.linkDown(ctx, k.Hit, f.For.Std())
	case change != nil:
		return s.changeLink(ctx, k, f, change)
	}
	switch f.Kind {
	case plan.DropTCP:
		return s.dropTCP(ctx, k.Hit, f.For.Std())
	case plan.Swallow:
		return s.dropUntilEnd(k.Hit)
	case plan.Freeze:
		return s.freeze(ctx, k, f.For.Std())
	case plan.Kill:
		return s.end(ctx, k, syscall.SIGKILL, f.For.Std())
	case plan.Stop:
		return s.end(ctx, k, syscall.SIGTERM, f.For.Std())
	case plan.Hangup:
		return s.hangUp(ctx, k, f.For.Std())
	case plan.Renumber:
		return s.renumber(ctx, k, f.For.Std())
	case plan.FlushRules:
		return s.flushRules(ctx, k)
	case plan.RestartNAT:
		return s.restartNAT(ctx, k, f.For.Std())
	case plan.Sysctl:
		return s.setForAWhile(ctx, k, f.Setting, f.For.Std())
	case plan.LieAgain:
		return s.lie(ctx, k)
	default:
		return s.attack(ctx, f, k)
	}
}

// linkChange returns how a fault of a link changes its parameters, or nil for other faults.
func linkChange(f plan.Fault) func(*testbed.LinkParams) {
	amount := f.Amount
	change, ok := map[plan.Kind]func(*testbed.LinkParams){
		plan.LinkSlow:      func(p *testbed.LinkParams) { p.Rate = int64(float64(p.Rate) * amount) },
		plan.LinkDelay:     func(p *testbed.LinkParams) { p.Delay = time.Duration(float64(p.Delay) * amount) },
		plan.LinkLoss:      func(p *testbed.LinkParams) { p.Loss = amount },
		plan.LinkBurst:     func(p *testbed.LinkParams) { p.Burst = amount },
		plan.LinkReorder:   func(p *testbed.LinkParams) { p.Reorder = amount },
		plan.LinkDuplicate: func(p *testbed.LinkParams) { p.Duplicate = amount },
		plan.LinkCorrupt:   func(p *testbed.LinkParams) { p.Corrupt = amount },
		plan.LinkTamper:    func(p *testbed.LinkParams) { p.Tamper = amount },
		plan.TamperReplies: func(p *testbed.LinkParams) { p.Tamper = amount },
	}[f.Kind]
	if !ok {
		return nil
	}
	return change
}

// effect returns the counter of a link that counts packets struck by a kind of fault, or nil
// if the fault affects every packet.
func effect(k plan.Kind) func(testbed.LinkStats) uint64 {
	return map[plan.Kind]func(testbed.LinkStats) uint64{
		plan.LinkLoss:      func(s testbed.LinkStats) uint64 { return s.LossDrops },
		plan.LinkBurst:     func(s testbed.LinkStats) uint64 { return s.LossDrops },
		plan.LinkReorder:   func(s testbed.LinkStats) uint64 { return s.Reordered },
		plan.LinkDuplicate: func(s testbed.LinkStats) uint64 { return s.Duplicated },
		plan.LinkCorrupt:   func(s testbed.LinkStats) uint64 { return s.Corrupted },
		plan.LinkTamper:    func(s testbed.LinkStats) uint64 { return s.Tampered },
		plan.TamperReplies: func(s testbed.LinkStats) uint64 { return s.Tampered },
	}[k]
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// freeze stops a process for a while.
func (s *injector) freeze(ctx context.Context, k *Strike, d time.Duration) error {
	a := s.w.agents[k.Hit]
	if !a.signal(syscall.SIGSTOP) {
		k.miss("it does not run")
		return nil
	}
	pause(ctx, d)
	a.signal(syscall.SIGCONT)
	return nil
}

// endLimit limits how long an agent on a busy machine may take to end after SIGTERM.
const endLimit = 20 * time.Second

// end ends a process and starts another.
func (s *injector) end(ctx context.Context, k *Strike, with syscall.Signal, d time.Duration) error {
	a := s.w.agents[k.Hit]
	if !a.end(with) {
		k.miss("it does not run")
		return nil
	}
	a.signal(syscall.SIGCONT) // it may be frozen by a fault before
	if err := a.await(endLimit); err != nil {
		s.w.failures.add("%v", err)
		a.end(syscall.SIGKILL)
		if err := a.await(endLimit); err != nil {
			return err
		}
	}
	pause(ctx, d)
	return a.start()
}

// deaf limits the time until a process handles SIGHUP, which by default ends it.
const deaf = 2 * time.Second

// hangUp sends SIGHUP, which must not end an agent. An agent that ended is a finding, and is
// started again for the faults that follow.
func (s *injector) hangUp(ctx context.Context, k *Strike, d time.Duration) error {
	a := s.w.agents[k.Hit]
	switch {
	case a.age() < deaf:
		k.miss("it has only just started")
		return nil
	case !a.signal(syscall.SIGHUP):
		k.miss("it does not run")
		return nil
	}
	pause(ctx, d)
	return a.start()
}

// lie makes the lying waypoint drop its sessions, so that the client asks it anew.
func (s *injector) lie(ctx context.Context, k *Strike) error {
	before := s.liar.Told()
	if err := s.liar.Restart(); err != nil {
		return err
	}
	for began := time.Now(); s.liar.Told() == before && time.Since(began) < 5*time.Second && ctx.Err() == nil; {
		pause(ctx, 100*time.Millisecond)
	}
	if s.liar.Told() == before {
		k.miss("nobody asked it for anything")
	}
	k.Note = fmt.Sprintf("%d lies", s.liar.Told()-before)
	return nil
}

// miss notes that the fault struck nothing.
func (k *Strike) miss(why string) { k.Counts, k.Note = false, why }

// open prepares the attackers.
func (s *injector) open() (err error) {
	if s.raw, err = attack.NewRaw(s.w.Host(mallory)); err != nil {
		return err
	}
	if s.w.plan.Liar == "" {
		return nil
	}
	id, err := s.w.identity(liar)
	if err != nil {
		return err
	}
	s.liar = attack.NewWaypoint(s.w.Host(liar), id, s.w.plan.Liar, s.w.Host(server).Addr(), s.w.log)
	return s.liar.Restart()
}

func (s *injector) close() {
	if s.liar != nil {
		_ = s.liar.Close() // its host goes next
	}
	if s.raw != nil {
		_ = s.raw.Close()
	}
}
