package path

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// Rule gives the connections that it covers a Policy of their own. A Rule without Ports, Networks and Cgroup covers
// all connections.
type Rule struct {
	// Name is shown to people.
	Name string
	// Ports lists the ports of the servers, Networks the networks of the peers.
	Ports    []uint16
	Networks []netip.Prefix
	// Cgroup is the absolute path of a cgroup. The Rule covers the sockets of the programs in it.
	Cgroup string
	// Policy decides about the connections. If it is nil, Config.Policy does.
	Policy policy.Policy
	// Start delays all subflows but the first.
	Start Start
	// Refresh replaces subflows over which nothing gets through, or which have become much slower.
	Refresh bool
	// RefuseJoins ends subflows that the peer opens.
	RefuseJoins bool
	// Announce tells the peers of connections that this host accepted about its addresses on other uplinks.
	Announce bool
	// Quota bounds the bytes on the path through a waypoint or over an uplink, by its name, for all connections of the
	// Rule together. A path whose quota is used up carries data only if there is no other. All quotas are full again
	// after QuotaEvery. Zero: never.
	Quota      map[string]uint64
	QuotaEvery time.Duration
	// Limits bounds the rate of each subflow through a waypoint or over an uplink, by its name. NearQuota bounds the
	// rate of each subflow on a path whose quota is used to four fifths.
	Limits    map[string]RateLimit
	NearQuota RateLimit
	// Kind is the kind of the connections' traffic if KindSaid is set. Otherwise the kind is measured.
	Kind     measure.Kind
	KindSaid bool
	// UserTimeout is the longest time for which data of a subflow may stay unacknowledged. Zero: the kernel's.
	UserTimeout time.Duration

	byDefault bool // Policy was nil, so it is Config.Policy
}

// Start holds conditions for opening a connection's further subflows. Each of them is sufficient. The zero value
// opens them at once.
type Start struct {
	Bytes uint64        // the connection carried at least this much, in both directions
	After time.Duration // time since the connection began
	Below float64       // the connection moved data more slowly than this for slowFor, in bytes a second
	// AboveRTT is a round trip that all subflows exceed in two consecutive samples.
	AboveRTT time.Duration
}

// slowFor is the time for which a connection must be slower than Start.Below. It is longer than slow start.
const slowFor = 2 * time.Second

// isZero reports whether subflows are opened at once.
func (s Start) isZero() bool { return s == Start{} }

// due reports whether further subflows are opened now. If not, at is the time at which they open without more
// traffic, if After is set.
func (s Start) due(t policy.Traffic) (due bool, at time.Time) {
	if s.After > 0 {
		at = t.Since.Add(s.After)
	}
	return s.isZero() || s.Bytes > 0 && t.Bytes >= s.Bytes || s.After > 0 && !t.Now.Before(at) ||
		s.Below > 0 && !t.Slow.IsZero() && t.Now.Sub(t.Slow) >= slowFor || s.AboveRTT > 0 && t.Far > 1, at
}

// plan asks the policy which detours to open. A connection whose only path is stuck opens another without waiting for
// Start.
func (r *Rule) plan(v policy.View) policy.Plan {
	if len(v.InUse) == 1 && !v.InUse[0].Stuck {
		if due, at := r.Start.due(v.Traffic); !due {
			return policy.Plan{Delayed: true, At: at}
		}
	}
	return r.Policy.Plan(v)
}

// isSingle reports whether a connection has one subflow at a time.
func (r *Rule) isSingle() bool {
	p, ok := r.Policy.(policy.Mesh)
	return ok && p.Mode == policy.SingleMode
}

// acts reports whether the rule changes or replaces subflows because of what samples show.
func (r *Rule) acts() bool {
	_, layout := r.Policy.(policy.Layout)
	return layout || r.Refresh
}

// Covers reports whether the rule is for connections to this server port and peer, from a program in this cgroup.
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
func (list rules) setDefault(p policy.Policy) {
	for _, r := range list {
		if r.byDefault {
			r.Policy = p
		}
	}
}

// of returns the rule for a connection: of the rules that cover it, the first with the innermost cgroup.
func (list rules) of(port uint16, peer netip.Addr, cgroup string) *Rule {
	best := list[len(list)-1]
	for _, r := range slices.Backward(list) {
		if r.Covers(port, peer, cgroup) && len(r.Cgroup) >= len(best.Cgroup) {
			best = r
		}
	}
	return best
}

// ports returns the detours that Ports policies use to have several subflows from one address.
func (list rules) ports() (detours []Detour) {
	most := 1
	for _, r := range list {
		if p, ok := r.Policy.(policy.Ports); ok {
			most = max(most, p.Subflows)
		}
	}
	for i := range min(most, policy.MostSubflows) - 1 {
		detours = append(detours, Detour{ID: DetourID("port " + string(rune('1'+i))), Kind: Port})
	}
	return detours
}
