// Package analyse reads captures and reports the behaviour of MPTCP in them. Data flows through these packages:
//
// analyse/capture reads the files. This package assigns packets to flows (flows.go) and distributes the flows to
// workers (deal.go). analyse/track follows the connections, one Tracker for each worker. analyse/report sums them
// up and writes the results.
package analyse

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
)

// Options configures an analysis.
type Options struct {
	Idle        time.Duration // time without a packet after which a connection has ended
	Connections int           // most connections alive at a time
	Workers     int           // 0: one for each processor
	Trace       uint32        // number of the connection whose packets are kept; 0: none
	// Done gets each connection that ended, from one goroutine at a time for each worker.
	Done func(worker int, r *track.Record)
}

// Counts sums up the packets of a capture.
type Counts struct {
	Packets    uint64    `json:"packets"`
	Bytes      uint64    `json:"bytes"` // before they were cut
	TCP        uint64    `json:"tcp"`
	MPTCP      uint64    `json:"mptcp"`       // packets of MPTCP connections
	PlainTCP   uint64    `json:"plain_tcp"`   // other TCP packets
	PlainSYNs  uint64    `json:"plain_syns"`  // connections that did not ask for MPTCP
	Other      uint64    `json:"other"`       // no TCP
	LinkLayers uint64    `json:"link_layers"` // of a link layer that is not known
	ClockSteps uint64    `json:"clock_steps"` // backwards, by more than a second
	Disordered uint64    `json:"disordered"`  // backwards, by less
	Late       uint64    `json:"late"`        // after their connection's end, or keep-alives of none
	Evicted    uint64    `json:"evicted"`     // connections that were ended early
	First      time.Time `json:"first"`
	Last       time.Time `json:"last"`
	Problems   []string  `json:"problems,omitempty"`
}

// DefaultWorkers returns the number of workers if Options.Workers is 0.
func DefaultWorkers() int { return min(runtime.GOMAXPROCS(0), 16) }

const (
	// batchSize is the number of packets that a worker gets at once.
	batchSize = 512
	// batchesEach is the number of batches of a worker. The slots that a worker released with a batch are reused only
	// when that batch is filled again. So the result does not depend on the workers' speed.
	batchesEach = 4
)

// batch carries packets to a worker. On its way back it carries the slots that the worker released.
type batch struct {
	packets []track.Packet
	clock   int64
	freed   []track.Freed
}

type worker struct {
	full  chan *batch
	empty chan *batch
	now   *batch // being filled
	slots slots
}

// Run reads a capture to its end.
func Run(ctx context.Context, files *capture.Merged, o Options) (Counts, error) {
	if o.Workers == 0 {
		o.Workers = DefaultWorkers()
	}
	d := newDealer(o.Workers)
	trackers := make([]*track.Tracker, o.Workers)
	var group sync.WaitGroup
	for i, w := range d.workers {
		trackers[i] = track.New(track.Options{
			Idle: o.Idle.Nanoseconds(), Connections: max(1, o.Connections/o.Workers), Trace: o.Trace,
			Done: func(r *track.Record) { o.Done(i, r) },
		})
		group.Go(func() { work(w, trackers[i]) })
	}
	var err error
	for n := 0; ; n++ {
		if n&0xfff == 0 {
			if err = ctx.Err(); err != nil {
				break
			}
		}
		p := files.Next()
		if p == nil {
			break
		}
		d.deal(p)
	}
	for _, w := range d.workers {
		w.flush(d.clock.activity)
		close(w.full)
	}
	group.Wait()
	counts := d.counts
	for _, t := range trackers {
		counts.Late += t.Late
		counts.Evicted += t.Evicted
	}
	if d.clock.began {
		counts.First, counts.Last = time.Unix(0, d.clock.first).UTC(), time.Unix(0, d.clock.last).UTC()
	}
	for _, p := range files.Problems() {
		counts.Problems = append(counts.Problems, p.Error())
	}
	return counts, err
}

func work(w *worker, t *track.Tracker) {
	for b := range w.full {
		for i := range b.packets {
			t.Handle(&b.packets[i])
		}
		t.Expire(b.clock)
		b.freed = t.Released()
		b.packets = b.packets[:0]
		w.empty <- b
	}
	t.Close()
}
