package path

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// Rule has the connections that it covers use their paths by a Policy of their own. A Rule without Ports, Networks and
// Cgroup covers all.
type Rule struct {
	// Name is shown to people.
	Name string
	// Ports lists ports of the connections' servers, Networks those of the peers.
	Ports    []uint16
	Networks []netip.Prefix
	// Cgroup is the absolute path of a cgroup, whose programs' sockets are meant.
	Cgroup string
	// Policy decides about the connections. If it is nil, Config.Policy does.
	Policy Policy
	// Start delays all subflows but the first.
	Start Start
	// Refresh has subflows replaced over which nothing gets through, or that have become much slower.
	Refresh bool
	// RefuseJoins has subflows ended that the peer opens.
	RefuseJoins bool
	// Announce has peers of connections that this host accepted told of its addresses on other uplinks.
	Announce bool
	// Quota bounds the bytes on the path through a waypoint or over an uplink, by its name, for all connections of
	// the Rule. A path whose quota is spent carries data only if there is no other. QuotaEvery is the time after
	// which all quotas are full again. Zero: never.
	Quota      map[string]uint64
	QuotaEvery time.Duration
	// Limits bounds the rate of each subflow through a waypoint or over an uplink, by its name. NearQuota bounds that of
	// subflows on a path of whose quota four fifths are used.
	Limits    map[string]RateLimit
	NearQuota RateLimit
	// Kind is the kind of the connections' traffic if KindSaid is set. Otherwise it is found from the traffic.
	Kind     measure.Kind
	KindSaid bool
	// UserTimeout is how long data of a subflow may stay unacknowledged. Zero: as long as the kernel wants.
	UserTimeout time.Duration

	byDefault bool // Policy is Config.Policy
}

// Start is the condition for a connection's further subflows. The first that applies opens them. The zero value opens
// them at once.
type Start struct {
	Bytes uint64        // the connection carried so many in both directions
	After time.Duration // since it began
	Below float64       // bytes per second: it moved data more slowly for slowFor
	// AboveRTT is a round trip that its subflow exceeds in two samples one after the other.
	AboveRTT time.Duration
}

// slowFor is the time for which a connection must be slower than its target. It covers slow start.
const slowFor = 2 * time.Second

// isZero reports whether subflows are opened at once.
func (s Start) isZero() bool { return s == Start{} }

// due reports whether further subflows are opened now. If not, at is the time at which they will be, if it is known.
func (s Start) due(t Traffic) (due bool, at time.Time) {
	if s.After > 0 {
		at = t.Since.Add(s.After)
	}
	return s.isZero() || s.Bytes > 0 && t.Bytes >= s.Bytes || s.After > 0 && !t.Now.Before(at) ||
		s.Below > 0 && !t.Slow.IsZero() && t.Now.Sub(t.Slow) >= slowFor || s.AboveRTT > 0 && t.Far > 1, at
}

// plan asks the policy which detours to open. A connection whose only path is lost does not wait for another.
func (r *Rule) plan(v View) Plan {
	if len(v.InUse) == 1 && !v.InUse[0].Stuck {
		if due, at := r.Start.due(v.Traffic); !due {
			return Plan{Delayed: true, At: at}
		}
	}
	return r.Policy.Plan(v)
}

// isSingle reports whether a connection has one subflow at a time.
func (r *Rule) isSingle() bool {
	p, ok := r.Policy.(Mesh)
	return ok && p.Mode == SingleMode
}

// acts reports whether the rule has subflows change their roles, or be replaced, by what is measured.
func (r *Rule) acts() bool {
	_, layout := r.Policy.(Layout)
	return layout || r.Refresh
}

// Covers reports whether the rule is for connections to this server's port and peer from a program in this cgroup.
func (r *Rule) Covers(port uint16, peer netip.Addr, cgroup string) bool {
	return (len(r.Ports) == 0 || slices.Contains(r.Ports, port)) &&
		(len(r.Networks) == 0 || slices.ContainsFunc(r.Networks, func(n netip.Prefix) bool { return n.Contains(peer) })) &&
		(r.Cgroup == "" || cgroup == r.Cgroup || strings.HasPrefix(cgroup, strings.TrimSuffix(r.Cgroup, "/")+"/"))
}

// rules holds the operator's rules. The last one covers every connection.
type rules []*Rule

func newRules(cfg *Config) (list rules) {
	for _, r := range cfg.Rules {
		r.byDefault = r.Policy == nil
		list = append(list, &r)
	}
	list = append(list, &Rule{byDefault: true})
	list.setDefault(cfg.Policy)
	return list
}

// setDefault sets the policy of the rules that have none of their own.
func (list rules) setDefault(p Policy) {
	for _, r := range list {
		if r.byDefault {
			r.Policy = p
		}
	}
}

// of returns the rule for a connection: the first of those with the innermost cgroup.
func (list rules) of(port uint16, peer netip.Addr, cgroup string) *Rule {
	best := list[len(list)-1]
	for _, r := range slices.Backward(list) {
		if r.Covers(port, peer, cgroup) && len(r.Cgroup) >= len(best.Cgroup) {
			best = r
		}
	}
	return best
}

// ports returns the detours that policies need to have several subflows from one address.
func (list rules) ports() (detours []Detour) {
	most := 1
	for _, r := range list {
		if p, ok := r.Policy.(Ports); ok {
			most = max(most, p.Subflows)
		}
	}
	for i := range min(most, mostSubflows) - 1 {
		detours = append(detours, Detour{ID: DetourID("port " + string(rune('1'+i))), Kind: Port})
	}
	return detours
}
