package client

import (
	"log/slog"

	"github.com/detour-collective/dcol/internal/kernel/bpf/police"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
)

// policer bounds the rates of subflows. The kernel gets the program with the first bound, as most hosts never need one. Only
// the client's loop uses it.
type policer struct {
	log  *slog.Logger
	open func() (rates, error)
	// rates is nil until there was a bound, and failed is set if the host cannot have any.
	rates  rates
	failed bool
}

// rates bounds what arrives over interfaces. It is *police.Policer.
type rates interface {
	Attach(interfaces []int) error
	Bound(flow police.Flow, bitsPerSecond uint64) error
	Free(flow police.Flow) error
	Close() error
}

// newPolicer removes what an agent that was killed has left.
func newPolicer(log *slog.Logger) policer {
	if err := police.CleanUp(); err != nil {
		log.Debug("an earlier agent's program that bounds rates may be left", "err", err)
	}
	return policer{log: log, open: func() (rates, error) { return police.Open() }}
}

// bound begins, changes or ends the bound of a subflow. Where the host cannot have bounds, it does nothing, which is logged
// once: bulk traffic then disturbs messages as without dcol.
func (p *policer) bound(a path.Bound, interfaces func() []netstate.Interface) error {
	flow := police.Flow{Src: a.Ends.Remote, Dst: a.Ends.Local}
	switch {
	case p.failed:
		return nil
	case a.Rate == 0 && p.rates == nil:
		return nil
	case a.Rate == 0:
		return p.rates.Free(flow)
	case p.rates == nil:
		opened, err := p.open()
		if err != nil {
			p.failed = true
			p.log.Warn("bulk traffic is not bounded where it delays messages", "err", err)
			return nil
		}
		p.rates = opened
		p.attach(interfaces())
	}
	return p.rates.Bound(flow, uint64(a.Rate))
}

// attach has bounds hold on the interfaces that there are now.
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

// CleanUp removes what the client role has left on interfaces. No agent may run.
func CleanUp() error { return police.CleanUp() }
