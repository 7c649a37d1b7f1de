package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// coupled are the algorithms that behave like Reno with one subflow.
var coupled = []cc.Algorithm{cc.LIA, cc.OLIA, cc.BALIA}

// uncoupled is the congestion control with which they are compared.
const uncoupled = "reno"

// manySubflows measures the shares of connections with four and eight subflows beside a TCP connection. The link is fast
// enough for windows of four packets and more.
func manySubflows(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	const most = 8
	length := runLength(repetitions, 6*time.Second)
	known, err := registerAlgorithms()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, known.close()) }()
	type many struct {
		contest
		subflows int
	}
	var list []many
	for _, n := range []int{4, most} {
		list = append(list, many{contest{label: "uncoupled " + uncoupled, name: uncoupled}, n})
		for _, a := range coupled {
			list = append(list, many{contest{label: string(a), name: known.names[a], bounded: true}, n})
		}
	}
	open := func() (*network, error) { return openShared(ctx, o, 80_000_000, most) }
	ratios, err := abreast(fastAbreast, open, repetitions, len(list), func(s *network, i int) (float64, error) {
		c := list[i]
		c.beside, c.others = uncoupled, 1
		if err := s.limitSubflows(ctx, c.subflows); err != nil {
			return 0, err
		}
		return s.share(ctx, c.contest, length)
	})
	if err != nil {
		return nil, err
	}
	for i, values := range ratios {
		c := list[i]
		m := of(fmt.Sprintf("transport fairness, MPTCP's %d subflows by %s to a TCP at 80 Mbit/s", c.subflows, c.label), "times", values)
		if c.bounded {
			m = m.target("0.6 to 1.2", m.Value >= 0.6 && m.Value <= 1.2)
		}
		found = append(found, m)
	}
	return found, nil
}

// equilibria holds the share of a link that a TCP connection with Reno keeps beside a subflow of an MPTCP connection, if
// the MPTCP connection has another link of the same rate for itself. The shares follow from the papers' equations, which
// TestMixedPaths of package cc solves.
var equilibria = map[cc.Algorithm]float64{cc.LIA: 0.70, cc.OLIA: 1, cc.BALIA: 0.75}

// mixedPaths measures how far connections move off a link that they share with a TCP connection, to one that they have for
// themselves.
func mixedPaths(ctx context.Context, o Options, repetitions int) (found []Measurement, err error) {
	const rate = 40_000_000
	const capacity = rate * segmentBytes / 1500 // without headers
	known, err := registerAlgorithms()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, known.close()) }()
	names := known.compared()
	length := runLength(repetitions, 12*time.Second)
	type parts struct{ kept, both float64 }
	open := func() (*network, error) { return openDisjoint(ctx, o, rate) }
	seen, err := abreast(fastAbreast, open, repetitions, len(names), func(s *network, i int) (parts, error) {
		mptcp, tcp, err := s.carried(ctx, contest{name: names[i], beside: uncoupled, others: 1}, length)
		per := 8 / length.Seconds() / capacity
		return parts{tcp * per, (mptcp + tcp) * per / 2}, err
	})
	if err != nil {
		return nil, err
	}
	kept, both := make([][]float64, len(names)), make([][]float64, len(names))
	for i, list := range seen {
		for _, p := range list {
			kept[i], both[i] = append(kept[i], p.kept), append(both[i], p.both)
		}
	}
	const what = "transport mixed, part of a shared link of 40 Mbit/s that TCP keeps beside MPTCP by "
	reno := of(what+"uncoupled "+uncoupled, "of the link", kept[0]).against(0.5)
	reno.Note = usedBy(both[0]) + "; the baseline is an equal share"
	found = append(found, reno)
	for i, a := range coupled {
		m := of(what+string(a), "of the link", kept[i+1]).against(equilibria[a])
		m = m.target("more than beside uncoupled reno", m.Value > reno.Value)
		m.Note = usedBy(both[i+1]) + "; the baseline is what the paper's equations give"
		found = append(found, m)
	}
	return found, nil
}

func usedBy(both []float64) string {
	return fmt.Sprintf("both links were used to %.3f", stats.Summarize(both).Median)
}

// disjointPaths measures what connections carry over two links that nobody else uses.
func disjointPaths(ctx context.Context, o Options, repetitions int) ([]Measurement, error) {
	open := func() (*network, error) { return openDisjoint(ctx, o, 10_000_000) }
	return beside(ctx, transportAbreast, open, "transport disjoint, two paths of 10 Mbit/s", repetitions, 12*time.Second, 0.985)
}

// openDisjoint builds a network of a client and a server with two links, over which a connection has a subflow each.
func openDisjoint(ctx context.Context, o Options, rate int64) (*network, error) {
	const second = "second"
	s, err := openLinks(ctx, o, testbed.BackendEmulator, linkOf(rate), transportLink, second)
	if err != nil {
		return nil, err
	}
	server := s.Host(serverHost)
	address, _ := server.AddrOn(second)
	err = errors.Join(
		s.hostCommand(ctx, serverHost, "ip", "mptcp", "endpoint", "add", address.String(), "dev", server.Interface(second), "signal"),
		s.limitSubflows(ctx, 2))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// fastLink measures what the algorithms cost on a link of 1 Gbit/s: goodput, and then time for each ACK.
func fastLink(ctx context.Context, o Options, repetitions int) ([]Measurement, error) {
	const length = 3 * time.Second
	open := func() (*network, error) { return openFast(ctx, o) }
	found, err := beside(ctx, 1, open, "transport fast, two subflows at 1 Gbit/s", repetitions, length, 0.98)
	if err != nil {
		return found, err
	}
	costs, err := fastACKs(ctx, open, length)
	return append(found, costs...), err
}

// fastACKs measures the time that each algorithm takes for an ACK of an upload. Goodput is measured separately, because
// measuring this time takes time as well.
func fastACKs(ctx context.Context, open func() (*network, error), length time.Duration) (found []Measurement, err error) {
	known, err := registerAlgorithms()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, known.close()) }()
	stop, err := timePrograms()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	s, err := open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, a := range cc.Algorithms {
		if _, err := s.goodput(ctx, known.names[a], length); err != nil {
			return nil, err
		}
	}
	return known.ackCosts("1 Gbit/s")
}

// openFast builds a network of a client and a server with a link of 1 Gbit/s. The kernel shapes it: the emulator is too
// slow, and few kernels have netem.
func openFast(ctx context.Context, o Options) (*network, error) {
	s, err := openPair(ctx, o, testbed.BackendVeth, testbed.LinkParams{})
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		s.hostCommand(ctx, clientHost, "tc", shape(s.Host(clientHost).Interface(transportLink), "1gbit")...),
		s.addAddresses(ctx, 1), s.limitSubflows(ctx, 2))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// shape returns the arguments of tc that bound the rate of what leaves by a device.
func shape(device, rate string) []string {
	return []string{"qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "256k", "limit", "1m"}
}

// beside measures the goodput of a connection with each coupled algorithm, as a share of its goodput with uncoupled Reno.
// It uses count networks at a time. The target is a share of at least least.
func beside(ctx context.Context, count int, open func() (*network, error), what string, repetitions int, length time.Duration, least float64) (found []Measurement, err error) {
	known, err := registerAlgorithms()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, known.close()) }()
	names := known.compared()
	rates, err := abreast(count, open, repetitions, len(names), func(s *network, i int) (float64, error) {
		rate, err := s.goodput(ctx, names[i], length)
		return rate / 1e6, err
	})
	if err != nil {
		return nil, err
	}
	reno := of(what+" by uncoupled "+uncoupled, "Mbit/s", rates[0])
	found = append(found, reno)
	for i, a := range coupled {
		m := of(fmt.Sprintf("%s by %s", what, a), "Mbit/s", rates[i+1]).against(reno.Value)
		found = append(found, m.target(fmt.Sprintf(">= %.1f %% of uncoupled %s", 100*least, uncoupled), *m.Ratio >= least))
	}
	return found, nil
}

// goodput returns the bits a second that an MPTCP upload brings, after a third of the time that is measured.
func (s *network) goodput(ctx context.Context, congestion string, length time.Duration) (rate float64, err error) {
	k, err := s.startCounter(ctx)
	if err != nil {
		return 0, err
	}
	defer k.close()
	f, err := s.upload(ctx, congestion, true)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if err := crew.Pause(ctx, length/3); err != nil {
		return 0, err
	}
	at := f.conn.LocalAddr().String()
	before, began := k.received()[at], time.Now()
	if err := crew.Pause(ctx, length); err != nil {
		return 0, err
	}
	return 8 * float64(k.received()[at]-before) / time.Since(began).Seconds(), nil
}
