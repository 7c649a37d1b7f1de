// Package linkcheck compares a link of the lab with its parameters: round-trip time, rate, loss, and the
// highest rate it carries. The kernel timestamps packets at both ends, so that only the link is measured.
//
// For `make bench` and tests.
package linkcheck

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/detour-collective/dcol/lab/emulink"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Bench is a network of two hosts and one link, to be measured.
type Bench struct {
	*testbed.Network
	a, b *testbed.Host
}

const linkName = "wire"

// Open builds the network on a backend of testbed.
func Open(ctx context.Context, backend string, seed uint64, log *slog.Logger) (*Bench, error) {
	n, err := testbed.Build(ctx, testbed.Spec{
		Hosts:   []testbed.HostSpec{{Name: "a"}, {Name: "b"}},
		Links:   []testbed.LinkSpec{{Name: linkName, A: "a", B: "b"}},
		Seed:    seed,
		Backend: backend,
	}, log)
	if err != nil {
		return nil, err
	}
	return &Bench{Network: n, a: n.Host("a"), b: n.Host("b")}, nil
}

// set gives both directions the same parameters and resets the counters.
func (v *Bench) set(p emulink.Params) error {
	if err := v.SetLink(linkName, p, p); err != nil {
		return err
	}
	return v.ResetStats()
}

// RTT describes how far round-trip times were from the link's parameters.
type RTT struct {
	Asked    emulink.Params // of each direction
	Expect   time.Duration  // both delays and both serialisations
	Probes   int
	Lost     int
	P50      time.Duration // of the error's absolute value
	P99      time.Duration
	Max      time.Duration
	Lateness emulink.Lateness // as the wire itself saw it, A to B
}

// RTT sends ICMP echo requests of packetSize bytes, one every interval, over a
// link without jitter, loss or other load.
func (v *Bench) RTT(ctx context.Context, p emulink.Params, probes int, interval time.Duration) (RTT, error) {
	if err := v.set(p); err != nil {
		return RTT{}, err
	}
	const packetSize = 84 // as ping sends
	rtts, err := ping(ctx, v.a, v.b.Addr4(), packetSize, probes, interval, 2*p.Delay+time.Second)
	if err != nil {
		return RTT{}, fmt.Errorf("measure RTT: %w", err)
	}
	r := RTT{Asked: p, Expect: 2 * (p.Delay + onLine(packetSize, p.Rate)), Probes: probes, Lost: probes - len(rtts)}
	var errs []time.Duration
	for _, rtt := range rtts {
		errs = append(errs, (rtt - r.Expect).Abs())
	}
	r.P50, r.P99, r.Max = quantile(errs, 0.50), quantile(errs, 0.99), quantile(errs, 1)
	ab, _, err := v.LinkStats(linkName)
	r.Lateness = ab.Late
	return r, err
}

// onLine returns how long it takes to send a packet.
func onLine(bytes int, rate int64) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(bytes) * 8 / float64(rate) * float64(time.Second))
}

// Rate describes how much a link forwarded of more than it can carry.
type Rate struct {
	Asked    int64   // bit/s of IP packets
	Measured float64 // bit/s of IP packets
	Error    float64 // relative, signed
}

// Rate offers UDP of full packets at one and a half times the rate.
func (v *Bench) Rate(ctx context.Context, rate int64, duration time.Duration) (Rate, error) {
	if err := v.set(emulink.Params{Rate: rate, Delay: 5 * time.Millisecond}); err != nil {
		return Rate{}, err
	}
	got, err := blast(ctx, v.a, v.b, blastSpec{packet: emulink.DefaultMTU, rate: rate * 3 / 2, duration: duration})
	if err != nil {
		return Rate{}, fmt.Errorf("measure rate: %w", err)
	}
	if got.packets < 2 {
		return Rate{}, fmt.Errorf("measure rate: %d of %d packets arrived", got.packets, got.sent)
	}
	// The first packet starts the clock, so its bytes came before it.
	measured := float64(got.packets-1) * emulink.DefaultMTU * 8 / got.span.Seconds()
	return Rate{Asked: rate, Measured: measured, Error: measured/float64(rate) - 1}, nil
}

// Loss describes how much a link lost of less than it can carry.
type Loss struct {
	Asked   float64
	Rate    int64 // of the link, bit/s
	Packets int
	Lost    int
	// Sigmas is the difference between Lost and the expected value, in standard deviations of the binomial
	// distribution.
	Sigmas float64
}

// Loss offers numbered packets of 250 bytes at two thirds of the rate.
func (v *Bench) Loss(ctx context.Context, loss float64, rate int64, duration time.Duration) (Loss, error) {
	// The queue holds everything that a delayed sender may send at once.
	p := emulink.Params{Rate: rate, Delay: 5 * time.Millisecond, Loss: loss, Queue: 16 << 20}
	if err := v.set(p); err != nil {
		return Loss{}, err
	}
	got, err := blast(ctx, v.a, v.b, blastSpec{packet: 250, rate: rate * 2 / 3, duration: duration})
	if err != nil {
		return Loss{}, fmt.Errorf("measure loss: %w", err)
	}
	n, lost := float64(got.sent), got.sent-got.packets
	return Loss{
		Asked: loss, Rate: rate, Packets: got.sent, Lost: lost,
		Sigmas: (float64(lost) - n*loss) / math.Sqrt(n*loss*(1-loss)),
	}, nil
}

// Highest is the highest rate that the emulator carries on this machine.
type Highest struct {
	// Unlimited is TCP's rate on a link without a rate limit, in bit/s of IP packets.
	Unlimited float64
	// Exact is the highest rate tried, in steps of a tenth of Unlimited, that
	// TCP filled to within 1 %.
	Exact int64
	// PacketsPerSecond is of packets of 100 bytes on a link without a rate.
	PacketsPerSecond float64
}

// Highest takes about a dozen times the duration.
func (v *Bench) Highest(ctx context.Context, duration time.Duration) (h Highest, err error) {
	delay := time.Millisecond
	if h.Unlimited, err = v.fill(ctx, emulink.Params{Delay: delay}, duration); err != nil {
		return h, err
	}
	for tenths := int64(9); tenths > 0; tenths-- {
		rate := int64(h.Unlimited) / 10 * tenths
		got, err := v.fill(ctx, emulink.Params{Rate: rate, Delay: delay}, duration)
		if err != nil {
			return h, err
		}
		if math.Abs(got/float64(rate)-1) <= 0.01 {
			h.Exact = rate
			break
		}
	}
	if err := v.set(emulink.Params{Delay: delay}); err != nil {
		return h, err
	}
	got, err := blast(ctx, v.a, v.b, blastSpec{packet: 100, duration: duration})
	if err != nil {
		return h, fmt.Errorf("measure packet rate: %w", err)
	}
	ab, _, err := v.LinkStats(linkName)
	h.PacketsPerSecond = float64(ab.Packets) / got.took.Seconds()
	return h, err
}

// fill returns what the link carries of a TCP connection, after it had a quarter of
// the duration to get up to speed.
func (v *Bench) fill(ctx context.Context, p emulink.Params, duration time.Duration) (bitsPerSecond float64, err error) {
	if err := v.set(p); err != nil {
		return 0, err
	}
	stop, err := stream(ctx, v.a, v.b)
	if err != nil {
		return 0, fmt.Errorf("measure TCP: %w", err)
	}
	defer stop()
	time.Sleep(duration / 4)
	before, _, err := v.LinkStats(linkName)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	time.Sleep(duration)
	after, _, err := v.LinkStats(linkName)
	if err != nil {
		return 0, err
	}
	return float64(after.Bytes-before.Bytes) * 8 / time.Since(start).Seconds(), nil
}
