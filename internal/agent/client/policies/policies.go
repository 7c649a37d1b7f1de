// Package policies translates the operator's settings into the path manager's. It is pure. The client role imports it.
package policies

import (
	"path/filepath"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// PathManager returns the configuration of the path manager. It lacks the seed, what earlier agents measured and used, and what
// only the kernel knows.
func PathManager(c *config.Config) path.Config {
	pc := Client(c.Client)
	pc.Rules, pc.Tunnels = rules(c), c.TunnelRanges
	return pc
}

// Client returns the part of the path manager's configuration that the section [client] has.
func Client(c config.Client) path.Config {
	pc := path.Config{
		Policy: policy.Detours{Subflows: c.Subflows, Order: Kinds(c.Kinds)}, Exclude: c.Exclude,
		ByWorth: c.Selection == config.SelectWorth,
	}
	pc.TLSPorts, pc.BulkPorts, pc.MessagePorts = PortNumbers(c.TLSPorts), PortNumbers(c.BulkPorts), PortNumbers(c.MessagePorts)
	return pc
}

// PortNumbers converts ports, which the configuration has checked to be within range.
func PortNumbers(ports []int) (numbers []uint16) {
	for _, port := range ports {
		numbers = append(numbers, uint16(port))
	}
	return numbers
}

// Kinds translates the operator's kinds of detours into the path manager's, in the same order.
func Kinds(list []config.Kind) []path.Kind {
	var out []path.Kind
	for _, word := range list {
		if k, ok := policy.ParseKind(string(word)); ok {
			out = append(out, k)
		}
	}
	return out
}

// rules translates the operator's policies into the path manager's.
func rules(c *config.Config) (list []path.Rule) {
	for _, t := range c.Policies {
		r := Coverage(&t)
		r.Name, r.Policy = string(t.Use), policyOf(&t, &c.Client)
		r.Start = path.Start{Bytes: uint64(t.AfterBytes), After: t.After.Std(), Below: float64(t.Below) / 8, AboveRTT: t.AboveRTT.Std()}
		r.Refresh, r.RefuseJoins, r.Announce, r.QuotaEvery = t.Refresh, t.RefuseJoins, t.Announce, t.QuotaEvery.Std()
		r.Kind, r.KindSaid = traffic(t.Traffic)
		for name, size := range t.Quota {
			if r.Quota == nil {
				r.Quota = make(map[string]uint64)
			}
			r.Quota[name] = uint64(size)
		}
		r.NearQuota, r.UserTimeout = path.RateLimit{On: t.NearQuota.On, Rate: float64(t.NearQuota.Rate)}, t.UserTimeout.Std()
		for name, limit := range t.Limit {
			if r.Limits == nil {
				r.Limits = make(map[string]path.RateLimit)
			}
			r.Limits[name] = path.RateLimit{On: limit.On, Rate: float64(limit.Rate)}
		}
		list = append(list, r)
	}
	return list
}

// traffic translates a kind of traffic. said is false if there is none.
func traffic(t config.Traffic) (kind measure.Kind, said bool) {
	switch t {
	case config.Bulk:
		return measure.Bulk, true
	case config.Messages:
		return measure.Messages, true
	case config.Short:
		return measure.Short, true
	default:
		return measure.Short, false
	}
}

// Coverage returns a rule that covers the connections of a policy. It does nothing with them yet.
func Coverage(t *config.Policy) path.Rule {
	r := path.Rule{Ports: PortNumbers(t.Ports), Networks: t.Networks, Cgroup: t.Cgroup}
	if r.Cgroup != "" {
		r.Cgroup = filepath.Clean(r.Cgroup)
	}
	return r
}

// policyOf returns nil for the policy that [client] describes, which a reload may change.
func policyOf(t *config.Policy, c *config.Client) policy.Policy {
	mesh := policy.Mesh{Subflows: t.Subflows, Uplinks: t.Uplinks}
	if t.Detours {
		mesh.Kinds = Kinds(c.Kinds)
	}
	switch t.Use {
	case config.UseFullMesh:
		mesh.Mode = policy.FullMode
	case config.UseBackup:
		mesh.Mode = policy.BackupMode
	case config.UseSingle:
		mesh.Mode = policy.SingleMode
	case config.UsePorts:
		return policy.Ports{Subflows: t.Subflows}
	case config.UsePaths:
		return policy.Paths{Subflows: t.Paths(), Kinds: mesh.Kinds}
	default:
		if t.Subflows == 0 {
			return nil
		}
		return policy.Detours{Subflows: t.Subflows, Order: Kinds(c.Kinds)}
	}
	return mesh
}
