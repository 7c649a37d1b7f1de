package sourceports

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// Hear reports whether to open a request for moves at a path server, and notes that it is open. There is one as long as
// connections use the path server's answers.
func (p *Ports) Hear(at string, now time.Time) bool {
	if !p.hears(at, now) {
		return false
	}
	p.hearing[at] = true
	return true
}

func (p *Ports) hears(at string, now time.Time) bool {
	if at == "" || p.hearing[at] {
		return false
	}
	for _, known := range p.servers {
		if known.asked == at && known.answers > 0 && now.Sub(known.wanted) < lifetime {
			return true
		}
	}
	return false
}

// HearingEnded notes that no request for moves is open at a path server.
func (p *Ports) HearingEnded(at string) { delete(p.hearing, at) }

// Moved notes the servers to which a path server has moved flows. It is asked about those with live connections when they
// are sampled next.
func (p *Ports) Moved(at string, servers []netip.AddrPort) {
	for _, server := range servers {
		if known := p.servers[server]; known != nil && known.asked == at {
			known.moved = true
		}
	}
}

// Grown reports whether a connection has carried enough data to ask a path server about its server, which
// the path server has not been asked about yet.
func (p *Ports) Grown(server netip.AddrPort, carried uint64) bool {
	return p.servers[server] == nil && slices.ContainsFunc(p.policies, func(x portPolicy) bool {
		return x.server != "" && x.bytes > 0 && carried >= x.bytes && x.coversAnyCgroup(server)
	})
}

// Concerned returns the samples of connections about which a path server may be asked. These are
// connections that have Grown, and connections to servers about which it was asked before.
func (p *Ports) Concerned(samples []path.Sample) (list []path.Sample) {
	if len(p.policies) == 0 {
		return nil
	}
	for i := range samples {
		s := &samples[i]
		if known := p.servers[s.Remote]; p.Grown(s.Remote, s.BytesReceived+s.BytesAcked) || known != nil && known.asked != "" {
			list = append(list, *s)
		}
	}
	return list
}

// Renew is called for a server that has a live connection. It reports whether to ask a path server about
// it again.
func (p *Ports) Renew(server netip.AddrPort, now time.Time) (s Search, search bool) {
	known := p.servers[server]
	if known == nil || known.asked == "" || !known.search(now) {
		return s, false
	}
	known.wanted = now
	return p.searchFor(server), true
}
