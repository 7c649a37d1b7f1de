package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// DefaultRepetitions is the number of times that the benchmark convert measures each figure.
const DefaultRepetitions = 11

// convertPlan sets the amount of work.
type convertPlan struct {
	repetitions int
	transfers   int // in each repetition, which takes their median
	fast        transferPlan
	limited     transferPlan  // at limitedRate
	mss         []int         // bytes of data in a segment, besides the usual number
	exchange    time.Duration // the time for which connections are opened one after the other
	parallel    int           // connections at a time
	sizes       []int         // bytes of an answer
	trips       int
	idle        int           // pairs
	descriptors int           // file descriptors that a process may open, at most; 0: as many as the machine allows
	delay       time.Duration // of each link while new connections are measured
	aside       asidePlan
}

// convert compares dcol's engine with other relays between an MPTCP client and a TCP server. All of them run on one host
// between the two.
func convert(ctx context.Context, o Options) ([]Measurement, error) {
	return compareRelays(ctx, o, convertPlan{
		repetitions: cmp.Or(o.Repetitions, DefaultRepetitions),
		transfers:   5,
		fast:        transferPlan{rampUp: 250 * time.Millisecond, look: 100 * time.Millisecond},
		limited:     transferPlan{rampUp: 400 * time.Millisecond, look: 500 * time.Millisecond},
		mss:         []int{536, 4000, 8000},
		exchange:    300 * time.Millisecond, parallel: 40, sizes: []int{1e3, 1e4, 1e5},
		trips: 200, idle: 20_000, delay: 20 * time.Millisecond,
		aside: asidePlan{pairs: 2000, parallel: 4, size: 20e3, delay: 5 * time.Millisecond},
	})
}

// converting is one run of the benchmark, with its results.
type converting struct {
	plan        convertPlan
	descriptors int // file descriptors that a relay may open
	relays      []*relayed
	notes       []string // which relays are missing, the versions of others, and what disturbed the run
}

// relayed holds a relay's measurements, one for each repetition.
type relayed struct {
	relay
	fast, limited map[direction][]relayTransfer
	byMSS         map[int][]relayTransfer // from the server to the client
	exchanges     map[int][]exchanged     // by the size of the answer
	trips         []float64               // µs, the median of each repetition
	first         []float64               // ms
	waiting       []float64               // ms, like first, by a client that waits for the converter's answer
	idle          []float64               // bytes for each pair
	beside        []float64               // goodput beside idle pairs, as a share of that without
	pairs         []int                   // idle pairs of each process
	stood         int                     // times that it stood still beside them
}

// allPairs returns the number of idle pairs of all processes.
func (r *relayed) allPairs() (n int) {
	for _, pairs := range r.pairs {
		n += pairs
	}
	return n
}

type direction string

const (
	down direction = "down" // from the server to the client
	up   direction = "up"
)

var directions = []direction{down, up}

// relayTransfer counts what a transfer did during a measurement.
type relayTransfer struct {
	bytes, seconds float64
	spent          time.Duration // by the relay's process
	// repeating is the number of transfers, of those whose median this is, in which MPTCP sent data again. It does so after
	// it has waited 200 ms for the acknowledgement, although nothing is lost here.
	repeating int
}

func (t relayTransfer) goodput() float64 { return t.bytes * 8 / 1e6 / t.seconds } // Mbit/s
func (t relayTransfer) perGB() float64   { return t.spent.Seconds() / (t.bytes / 1e9) }

// exchanged counts what many short connections did.
type exchanged struct {
	Exchanged
	spent time.Duration // by the relay's process
}

func (x exchanged) rate() float64 { return float64(x.Done) / x.Seconds }
func (x exchanged) each() float64 { return float64(x.spent.Nanoseconds()) / 1e3 / float64(x.Done) } // µs

func compareRelays(ctx context.Context, o Options, plan convertPlan) ([]Measurement, error) {
	descriptors, err := raiseDescriptors()
	if err != nil {
		return nil, err
	}
	if plan.descriptors > 0 {
		descriptors = min(descriptors, plan.descriptors)
	}
	relays, notes := findRelays(ctx, o.HAProxy, descriptors)
	c := converting{plan: plan, descriptors: descriptors, notes: notes}
	for _, r := range relays {
		c.relays = append(c.relays, &relayed{
			relay: r, fast: map[direction][]relayTransfer{}, limited: map[direction][]relayTransfer{}, byMSS: map[int][]relayTransfer{}, exchanges: map[int][]exchanged{},
		})
	}
	if err := c.withoutDelay(ctx, o); err != nil {
		return nil, err
	}
	if err := c.withDelay(ctx, o); err != nil {
		return nil, err
	}
	found := c.figures()
	for _, plan.aside.multipath = range []bool{false, true} {
		fmt.Fprintf(o.Stderr, "bench convert: %d requests with dcol and without, the server speaks MPTCP: %t\n", plan.aside.pairs, plan.aside.multipath)
		beside, err := compareAside(ctx, o, plan.aside)
		if err != nil {
			return nil, err
		}
		found = append(found, beside.figures()...)
	}
	return found, nil
}

// withoutDelay measures all but new connections, on links as fast as the kernel.
func (c *converting) withoutDelay(ctx context.Context, o Options) (err error) {
	l, err := openLine(ctx, o, testbed.BackendVeth, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	running, err := l.startAll(ctx, c.relays)
	if err != nil {
		return err
	}
	watch, err := watchOthers()
	if err != nil {
		return err
	}
	step := func(what string) { fmt.Fprintf(o.Stderr, "bench convert: %s\n", what) }
	step("transfers")
	for _, d := range directions {
		err := c.inTurns(running, moving, func(r *runningRelay) error {
			t, err := l.transfers(ctx, r, d, c.plan.fast, c.plan.transfers)
			r.fast[d] = append(r.fast[d], t)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := c.segments(ctx, l, running, step); err != nil {
		return err
	}
	for _, size := range c.plan.sizes {
		step(fmt.Sprintf("connections of %d bytes", size))
		err := c.inTurns(running, opening, func(r *runningRelay) error {
			x, err := l.exchange(r, Exchanges{r.target, size, c.plan.parallel, c.plan.exchange})
			r.exchanges[size] = append(r.exchanges[size], x)
			return err
		})
		if err != nil {
			return err
		}
	}
	step("round trips")
	err = c.inTurns(running, other, func(r *runningRelay) error {
		took, err := l.trips(r, c.plan.trips)
		r.relayed.trips = append(r.relayed.trips, took)
		return err
	})
	if err != nil {
		return err
	}
	if note, err := watch(); err != nil {
		return err
	} else if note != "" {
		c.notes = append(c.notes, note)
	}
	step("transfers at 1 Gbit/s")
	if err := l.limitRate(true); err != nil {
		return err
	}
	for _, d := range directions {
		err := c.inTurns(running, other, func(r *runningRelay) error {
			t, err := l.transfer(ctx, r, d, c.plan.limited)
			r.limited[d] = append(r.limited[d], t)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := l.limitRate(false); err != nil {
		return err
	}
	step("idle connections")
	return c.inTurns(running, other, func(r *runningRelay) error {
		if r.command == nil {
			return nil
		}
		r.pairs = r.idlePairs(c.plan.idle, c.descriptors)
		each, beside, err := l.idle(ctx, r, r.pairs, c.plan.fast, c.plan.transfers)
		return c.tookIdle(r.relayed, each, beside, err)
	})
}

// tookIdle stores the cost of a relay's idle pairs. If a relay other than dcol's stands still beside them, that is only
// counted: nothing is compared with its figures, so the run goes on.
func (c *converting) tookIdle(r *relayed, each, beside float64, err error) error {
	switch {
	case err == nil:
		r.idle, r.beside = append(r.idle, each), append(r.beside, beside)
	case errors.Is(err, errStandsStill) && r.name != engineRelay:
		r.stood++
	default:
		return err
	}
	return nil
}

// segments measures transfers with the plan's segment sizes.
func (c *converting) segments(ctx context.Context, l *line, running []*runningRelay, step func(string)) error {
	for _, mss := range c.plan.mss {
		step(fmt.Sprintf("transfers with an MSS of %d", mss))
		if err := l.setMTU(mss + headers); err != nil {
			return err
		}
		err := c.inTurns(running, other, func(r *runningRelay) error {
			t, err := l.transfers(ctx, r, down, c.plan.fast, c.plan.transfers)
			r.byMSS[mss] = append(r.byMSS[mss], t)
			return err
		})
		if err != nil {
			return err
		}
	}
	return l.setMTU(usualMTU)
}

// withDelay measures new connections over links with delay.
func (c *converting) withDelay(ctx context.Context, o Options) (err error) {
	l, err := openLine(ctx, o, testbed.BackendAuto, c.plan.delay)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	running, err := l.startAll(ctx, c.relays)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Stderr, "bench convert: new connections over links of %v\n", c.plan.delay)
	return c.inTurns(running, opening, func(r *runningRelay) error {
		took, err := l.first(r.target)
		r.relayed.first = append(r.relayed.first, took)
		if err != nil || !r.converts {
			return err
		}
		patient := r.target
		patient.Waits = true
		took, err = l.first(patient)
		r.waiting = append(r.waiting, took)
		return err
	})
}

// inTurns measures the relays in turns. It leaves out variants that are for another step.
func (c *converting) inTurns(all []*runningRelay, s step, measure func(*runningRelay) error) error {
	return inTurns(c.plan.repetitions, len(all), func(_, i int) error {
		if only := all[i].only; only != other && only != s {
			return nil
		}
		if err := measure(all[i]); err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		return nil
	})
}

// watchOthers returns a function that reports whether other programs of this machine disturbed the run.
func watchOthers() (stop func() (note string, err error), err error) {
	read := func() (s snapshot, err error) {
		if s.spent, err = readProcessTimes(); err != nil {
			return s, err
		}
		machine, err := crew.ReadMachineTime()
		s.at, s.busy = time.Now(), machine.Busy
		return s, err
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	return func() (string, error) {
		after, err := read()
		if err != nil {
			return "", err
		}
		others := after.busy - before.busy - after.spent.since(before.spent)
		if cores := others.Seconds() / after.at.Sub(before.at).Seconds(); cores > busyMachine {
			return fmt.Sprintf("disturbed: programs that are not ours took %.1f cores meanwhile", cores), nil
		}
		return "", nil
	}, nil
}
