package client

import (
	"fmt"
	"log/slog"

	"github.com/detour-collective/dcol/internal/kernel/bpf/police"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
)

// policer bounds the rates of subflows. It attaches the program to the kernel with the first bound,
// because most hosts never need one. Only the client's loop uses it.
type policer struct {
	log  *slog.Logger
	open func() (rates, error)
	// rates is nil before the first bound. failed is the reason why this host cannot bound rates; nil: none is known.
	rates    rates
	failed   error
	byPolicy bool // whether a policy wanted a bound
	flows    map[police.Flow]twoBounds
}

// twoBounds has the rates to which a subflow is bounded, in bits of IP packets a second: while it is bulk traffic that
// disturbs messages, and by its policy. The lower one holds. Zero: no bound.
type twoBounds struct{ bulk, policy float64 }

func (b twoBounds) lower() float64 {
	if b.bulk == 0 || b.policy > 0 && b.policy < b.bulk {
		return b.policy
	}
	return b.bulk
}

// rates bounds what arrives over interfaces. It is *police.Policer.
type rates interface {
	Attach(interfaces []int) error
	Bound(flow police.Flow, bitsPerSecond uint64) error
	Free(flow police.Flow) error
	Close() error
}

// newPolicer removes the program of an agent that was killed.
func newPolicer(log *slog.Logger) policer {
	if err := police.CleanUp(); err != nil {
		log.Debug("an earlier agent's program that bounds rates may be left", "err", err)
	}
	return policer{log: log, flows: make(map[police.Flow]twoBounds), open: func() (rates, error) { return police.Open() }}
}

// bound begins, changes or ends the bound of a subflow of bulk traffic.
func (p *policer) bound(a path.Bound, interfaces func() []netstate.Interface) error {
	return p.change(a.Ends, func(b *twoBounds) { b.bulk = a.Rate }, interfaces)
}

// wholePacket is the ratio of a packet to its payload.
const wholePacket = 1500. / 1400

// restrict begins, changes or ends the bound of a subflow that its policy has.
func (p *policer) restrict(a path.Restrict, interfaces func() []netstate.Interface) error {
	p.byPolicy = p.byPolicy || a.Rate > 0
	return p.change(a.Ends, func(b *twoBounds) { b.policy = wholePacket * a.Rate }, interfaces)
}

// works reports whether the host can have bounds, as far as is known.
func (p *policer) works() bool { return p.failed == nil }

// change changes the bounds of a subflow. If the host cannot have bounds, change does nothing, and logs
// that once. Bulk traffic then disturbs messages as it does without dcol, and peers send as fast as they
// like.
func (p *policer) change(ends path.Ends, change func(*twoBounds), interfaces func() []netstate.Interface) error {
	if !p.works() {
		return nil
	}
	flow := police.Flow{Src: ends.Remote, Dst: ends.Local}
	bounds := p.flows[flow]
	before := bounds.lower()
	change(&bounds)
	if p.flows[flow] = bounds; bounds == (twoBounds{}) {
		delete(p.flows, flow)
	}
	switch rate := bounds.lower(); {
	case rate == before:
		return nil
	case rate == 0:
		return p.rates.Free(flow)
	case p.rates == nil:
		opened, err := p.open()
		if err != nil {
			p.failed = err
			p.log.Warn("what subflows receive is not bounded", "err", err)
			return nil
		}
		p.rates = opened
		p.attach(interfaces())
		fallthrough
	default:
		return p.rates.Bound(flow, uint64(rate))
	}
}

// problems explains to the user why this host does not limit what subflows receive, if a policy wants a
// limit.
func (p *policer) problems() []string {
	if p.failed == nil || !p.byPolicy {
		return nil
	}
	return []string{fmt.Sprintf("policies do not limit what this host receives ([[policy]] limit, near_quota): %v", p.failed)}
}

// attach applies bounds on the interfaces that exist now.
func (p *policer) attach(interfaces []netstate.Interface) {
	if p.rates == nil {
		return
	}
	var all []int
	for _, i := range interfaces {
		if !i.Loopback {
			all = append(all, i.Index)
		}
	}
	if err := p.rates.Attach(all); err != nil {
		p.log.Warn("bulk traffic over some interfaces is not bounded", "err", err)
	}
}

// close ends all bounds.
func (p *policer) close() error {
	if p.rates == nil {
		return nil
	}
	err := p.rates.Close()
	p.rates = nil
	return err
}

// CleanUp removes the programs of a client role that was killed from interfaces. No agent may run.
func CleanUp() error { return police.CleanUp() }
