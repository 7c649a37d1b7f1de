package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/stats"
)

// forwardingPlan sets the amount of work.
type forwardingPlan struct {
	repetitions int
	transferPlan
	packets packetPlan
}

// segmentLimit bounds the size of the segments that hosts forward.
type segmentLimit struct {
	name    string
	packets int // in a segment, at most; 0: as many as the kernel puts together
}

// segmentLimits covers two kinds of network cards: those that merge packets (GRO, and TSO for sending), as most do, and
// those that do not.
var segmentLimits = []segmentLimit{{"in large pieces", 0}, {"packet by packet", 1}}

// forwarding measures the cost of each kind of detour at a waypoint. It compares that with a router, a router that
// masquerades, and a relay in user space. One plain TCP connection at a time uses each route, as fast as it can. All links
// are veth pairs.
func forwarding(ctx context.Context, o Options) ([]Measurement, error) {
	return compareForwarding(ctx, o, forwardingPlan{
		8, transferPlan{rampUp: 300 * time.Millisecond, look: time.Second}, packetPlan{repetitions: 15, each: 50000},
	})
}

func compareForwarding(ctx context.Context, o Options, plan forwardingPlan) (found []Measurement, err error) {
	s, err := openChain(ctx, o, []string{memberHost}, []string{plainHost, natHost})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	k, err := s.startSink(ctx)
	if err != nil {
		return nil, err
	}
	defer k.close()
	all, err := s.routes(ctx)
	if err != nil {
		return nil, err
	}
	port := firstPort
	if found, err = s.measurePackets(ctx, all, port, plan.packets); err != nil {
		return nil, err
	}
	port += uint16(len(all))
	for _, size := range segmentLimits {
		if size.packets > 0 {
			if err := s.limitSegments(size.packets, clientHost, serverHost, plainHost, natHost, memberHost); err != nil {
				return found, err
			}
		}
		carried := make([][]transferred, len(all))
		err := inTurns(plan.repetitions, len(all), func(_, i int) error {
			port++
			t, err := s.carry(ctx, k, all[i], port, plan.transferPlan)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", all[i].name, size.name, err)
			}
			carried[i] = append(carried[i], t)
			return nil
		})
		if err != nil {
			return found, err
		}
		found = append(found, forwardingFigures(size, all, carried)...)
	}
	return found, nil
}

// firstPort is the number below the client's first port. Each connection has another port, so that the state of an
// earlier connection cannot disturb it.
const firstPort uint16 = 20000

func (s *network) carry(ctx context.Context, k *sink, c route, port uint16, plan transferPlan) (t transferred, err error) {
	conn, err := c.dial(ctx, s, port)
	if err != nil {
		return t, err
	}
	return k.transfer(ctx, conn, plan)
}

// forwardingFigures returns, for each route, the goodput, the processor time of all hosts, and that time without the
// part that the two ends need.
func forwardingFigures(size segmentLimit, all []route, carried [][]transferred) (found []Measurement) {
	const ends, plain = 0, 1 // in the order of routes
	var goodput, total, share []Measurement
	for i, c := range all {
		var mbps, seconds, own, others []float64
		for r, t := range carried[i] {
			mbps = append(mbps, t.goodput())
			seconds = append(seconds, t.perGB())
			own = append(own, t.perGB()-carried[ends][r].perGB())
			others = append(others, t.others.Seconds()/t.seconds)
		}
		name := func(what string) string { return fmt.Sprintf("forwarding, %s: %s, %s", size.name, what, c.name) }
		g := of(name("goodput"), "Mbit/s", mbps)
		if most := stats.Median(others); most > busyMachine {
			g.Note = fmt.Sprintf("disturbed: programs that are not ours took %.1f cores meanwhile", most)
		}
		goodput = append(goodput, g)
		total = append(total, of(name("processor time of all hosts"), "s/GB", seconds))
		share = append(share, of(name("processor time between the ends"), "s/GB", own))
	}
	total[plain].Note = forwardingNote(size)
	for i, c := range all {
		if i != plain {
			goodput[i] = goodput[i].against(goodput[plain].Value)
			total[i] = total[i].against(total[plain].Value)
		}
		if i != plain && i != ends {
			share[i] = share[i].against(share[plain].Value)
		}
		if c.name == string(config.InBand) {
			goodput[i] = goodput[i].target("ratio >= 0.9", *goodput[i].Ratio >= 0.9)
			total[i] = total[i].target("ratio <= 1.1", *total[i].Ratio <= 1.1)
		}
	}
	return append(append(append(found, goodput...), total...), share[plain:]...)
}

// busyMachine is a number of cores. If other programs use more, goodput is doubtful.
const busyMachine = 0.1

// forwardingNote describes the measurement.
func forwardingNote(size segmentLimit) string {
	pass := "up to 64 KiB pass as one packet, as behind cards that put packets together"
	if size.packets > 0 {
		pass = "every packet passes by itself, as behind a card that puts none together"
	}
	return pass + "; one plain TCP connection at a time, the ways in turns; processor time is by the clocks of all our processes and of the kernel's threads; " +
		"between the ends is what is left without that of a connection that no host forwards, in the same turn"
}
