package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// network is a scenario's network, with the current state of its links and middleboxes.
type network struct {
	*testbed.Network
	scenario *scenario.Scenario

	mu          sync.Mutex
	shapes      map[string]scenario.Shape // of each link
	down        map[string]bool
	middleboxes map[string]scenario.Middlebox // by host
	sysctls     map[string]map[string]string  // the scenario's, by host
}

// buildNetwork builds a scenario's network as declared.
func buildNetwork(ctx context.Context, s *scenario.Scenario, o Options) (*network, error) {
	built, err := testbed.Build(ctx, specOf(s, o), o.Log.With("subsystem", "experiment"))
	if err != nil {
		return nil, err
	}
	n := &network{
		Network: built, scenario: s,
		shapes: map[string]scenario.Shape{}, down: map[string]bool{}, middleboxes: map[string]scenario.Middlebox{},
		sysctls: s.SysctlsIn(scenario.Variant{}),
	}
	for _, link := range s.Links {
		n.shapes[link.Name] = link.Shape
	}
	for _, h := range s.Hosts {
		n.middleboxes[h.Name] = h.Middlebox
		if err := built.Host(h.Name).SetCongestionControl(s.Congestion); err != nil {
			return nil, errors.Join(err, built.Close())
		}
	}
	return n, nil
}

// setLink gives a link a new shape at once.
func (n *network) setLink(name string, shape scenario.Shape) error {
	link, ok := n.scenario.Link(name)
	if !ok {
		return fmt.Errorf("there is no link %q", name)
	}
	ab, ba := linkParams(shape, link.MTU)
	if err := n.SetLink(name, ab, ba); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shapes[name] = shape
	return nil
}

// changeLink applies a change to a link's present shape.
func (n *network) changeLink(c scenario.Change) error {
	shape, _ := n.link(c.Link)
	return n.setLink(c.Link, c.Shape.Over(shape))
}

// link returns a link's current shape, and reports whether the link is down.
func (n *network) link(name string) (shape scenario.Shape, down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shapes[name], n.down[name]
}

// setDown takes a link down or up.
func (n *network) setDown(name string, down bool) error {
	if err := n.LinkDown(name, down); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down[name] = down
	return nil
}

// cutOff takes all links of a host down.
func (n *network) cutOff(host string) error {
	for _, link := range n.scenario.Links {
		if link.A == host || link.B == host {
			if err := n.setDown(link.Name, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// setVariant gives every link the variant's shape, brings all links up, and sets the hosts' kernel parameters and
// middleboxes. The parameters affect only sockets that are opened later.
func (n *network) setVariant(v scenario.Variant) error {
	wanted := n.scenario.SysctlsIn(v)
	for host, values := range wanted {
		for key, value := range values {
			if n.sysctls[host][key] == value {
				continue
			}
			if err := n.Host(host).Sysctl(key, value); err != nil {
				return err
			}
		}
	}
	n.sysctls = wanted
	for host, m := range n.scenario.MiddleboxesIn(v) {
		if n.middlebox(host) == m {
			continue
		}
		if err := n.setMiddlebox(host, m); err != nil {
			return err
		}
	}
	for i, shape := range n.scenario.Shapes(v) {
		name := n.scenario.Links[i].Name
		now, down := n.link(name)
		if shape != now {
			if err := n.setLink(name, shape); err != nil {
				return err
			}
		}
		if down {
			if err := n.setDown(name, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// setMiddlebox changes a host's middlebox.
func (n *network) setMiddlebox(host string, m scenario.Middlebox) error {
	if err := n.SetMiddlebox(host, testbed.Middlebox(m)); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.middleboxes[host] = m
	return nil
}

// middlebox returns a host's current middlebox.
func (n *network) middlebox(host string) scenario.Middlebox {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.middleboxes[host]
}

// dropTCP starts or stops dropping all TCP that a host forwards.
func (n *network) dropTCP(host string, on bool) error {
	h := n.Host(host)
	if h == nil {
		return fmt.Errorf("there is no host %q", host)
	}
	return h.DropForwardedTCP(on)
}

// renumber gives a host other addresses on a link. In between, it has none for the event's gap.
func (n *network) renumber(ctx context.Context, e scenario.Event) error {
	if err := n.TakeAddress(e.Host, e.Renumber); err != nil {
		return err
	}
	err := crew.Pause(ctx, e.Gap.Std())
	return errors.Join(err, n.Renumber(e.Host, e.Renumber))
}

// use reads the links' counters since the last reset.
func (n *network) use() ([]report.LinkUse, error) {
	var uses []report.LinkUse
	for _, link := range n.scenario.Links {
		ab, ba, err := n.LinkStats(link.Name)
		if err != nil {
			return nil, err
		}
		uses = append(uses, oneWay(link.Name, link.A, link.B, ab), oneWay(link.Name, link.B, link.A, ba))
	}
	return uses, nil
}

func oneWay(link, from, to string, s testbed.LinkStats) report.LinkUse {
	return report.LinkUse{
		Link: link, From: from, To: to, Packets: s.Packets, Bytes: s.Bytes,
		QueueDrops: s.QueueDrops, LossDrops: s.LossDrops, DownDrops: s.DownDrops,
		LatenessP99MS: stats.Milliseconds(s.Late.P99), LatenessMaxMS: stats.Milliseconds(s.Late.Max),
		EmulationDrops: s.RingDrops + s.WriteErrors, RadioJoules: s.Energy,
	}
}

// natKind converts a kind of NAT for the testbed, where symmetric is the zero value.
func natKind(k scenario.NATKind) testbed.NATKind {
	if k == scenario.Symmetric {
		return testbed.Symmetric
	}
	return testbed.NATKind(k)
}

// specOf converts a scenario's network to a Spec for the testbed.
func specOf(of *scenario.Scenario, o Options) testbed.Spec {
	s := testbed.Spec{Seed: cmp.Or(o.seed, uint64(of.Seed)), Backend: o.Backend}
	if s.Backend == testbed.BackendAuto && (of.Impaired() || of.HasRadio()) {
		s.Backend = testbed.BackendEmulator // from the start: a link may be impaired later
	}
	for _, h := range of.Hosts {
		spec := testbed.HostSpec{
			Name: h.Name, Forward: h.Has(scenario.RoleRouter),
			Subflows: h.Subflows, NoMPTCP: !h.HasMPTCP(), IPv6Only: h.IPv6Only, Sysctls: h.SysctlValues(),
			Middlebox: testbed.Middlebox(h.Middlebox), Quotes: h.Quotes, ICMP: h.ICMP, Balance: h.Balance, NAT: testbed.NAT{Inside: h.NAT, Kind: natKind(h.NATKind)},
		}
		for _, f := range h.Forwards {
			spec.NAT.Forwards = append(spec.NAT.Forwards, testbed.PortForward{Protocol: string(f.Protocol), Port: uint16(f.Port), To: f.To})
		}
		s.Hosts = append(s.Hosts, spec)
	}
	for _, link := range of.Links {
		ab, ba := linkParams(link.Shape, link.MTU)
		s.Links = append(s.Links, testbed.LinkSpec{
			Name: link.Name, A: link.A, B: link.B, AtoB: ab, BtoA: ba, Cost: link.Cost, MTU: link.MTU, Radio: radioOf(link.Radio),
		})
	}
	return s
}

func radioOf(r *scenario.Radio) testbed.Radio {
	if r == nil {
		return testbed.Radio{}
	}
	return testbed.Radio{Wake: r.Wake.Std(), Sleep: r.Sleep.Std(), Power: float64(r.Power), Low: float64(r.Low)}
}

func linkParams(s scenario.Shape, mtu int) (ab, ba testbed.LinkParams) {
	toB, toA := s.Directions()
	return params(toB, mtu), params(toA, mtu)
}

// params returns a direction's properties for the testbed. Properties that are not set are 0.
func params(p scenario.Params, mtu int) testbed.LinkParams {
	lp := testbed.LinkParams{
		Rate: int64(set(p.Rate)), Delay: set(p.Delay).Std(), Jitter: set(p.Jitter).Std(), Loss: float64(set(p.Loss)),
		Impairments: testbed.Impairments{
			Burst: float64(set(p.Burst)), BurstLength: float64(set(p.BurstLength)), BurstLoss: float64(set(p.BurstLoss)),
			Reorder: float64(set(p.Reorder)), ReorderBy: set(p.ReorderBy).Std(),
			Duplicate: float64(set(p.Duplicate)), Corrupt: float64(set(p.Corrupt)), Tamper: float64(set(p.Tamper)),
		},
	}
	if p.Queue != nil {
		lp.Queue = p.Queue.In(mtu)
	}
	return lp
}

// set returns the value that a pointer leads to, or zero.
func set[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
