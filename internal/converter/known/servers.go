package known

import (
	"iter"
	"net/netip"
	"time"
)

// Support says whether a server speaks MPTCP.
type Support int

// The values of Support.
const (
	Unknown Support = iota
	Plain           // it answered MP_CAPABLE with plain TCP
	MPTCP
)

// The times for which a finding holds. Servers seldom lose MPTCP, but one that gains it should be noticed soon.
const (
	SpeaksFor = time.Hour
	PlainFor  = 10 * time.Minute
)

// Servers remembers which servers speak MPTCP. It is not safe for concurrent use.
type Servers struct{ found *Map[netip.AddrPort, finding] }

type finding struct {
	support Support
	at      time.Time
}

// NewServers returns Servers that remember at most the given number of servers.
func NewServers(most int) *Servers { return &Servers{NewMap[netip.AddrPort, finding](most)} }

// TakesSeveral reports whether a server is likely to take any number of connections, because its port is that of a
// service. A program at another port may listen for one connection only, such as for a file by FTP.
func TakesSeveral(server netip.AddrPort) bool { return server.Port() < 1024 }

// Learn notes whether a server answered MP_CAPABLE with MPTCP, and when that was seen. A later finding counts more.
func (s *Servers) Learn(server netip.AddrPort, mptcp bool, at time.Time) {
	if last, ok := s.found.Get(server, at); ok && at.Before(last.at) {
		return
	}
	if mptcp {
		s.found.Set(server, finding{MPTCP, at}, at.Add(SpeaksFor))
	} else {
		s.found.Set(server, finding{Plain, at}, at.Add(PlainFor))
	}
}

// Support returns what is known of a server.
func (s *Servers) Support(server netip.AddrPort, now time.Time) Support {
	last, _ := s.found.Get(server, now)
	return last.support
}

// All returns the servers about which something is known.
func (s *Servers) All(now time.Time) iter.Seq2[netip.AddrPort, Support] {
	return func(yield func(netip.AddrPort, Support) bool) {
		for server, last := range s.found.All(now) {
			if !yield(server, last.support) {
				return
			}
		}
	}
}
