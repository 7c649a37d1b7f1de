package client

import (
	"cmp"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// rules translates the operator's policies into the path manager's.
func rules(c *config.Config) (list []path.Rule) {
	for _, t := range c.Policies {
		r := coverage(&t)
		r.Name, r.Policy = string(t.Use), policy(&t, &c.Client)
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

// coverage returns a rule for the connections of a policy, which does nothing yet.
func coverage(t *config.Policy) path.Rule {
	r := path.Rule{Ports: portNumbers(t.Ports), Networks: t.Networks, Cgroup: t.Cgroup}
	if r.Cgroup != "" {
		r.Cgroup = filepath.Clean(r.Cgroup)
	}
	return r
}

func policy(t *config.Policy, c *config.Client) path.Policy {
	mesh := path.Mesh{Subflows: t.Subflows, Uplinks: t.Uplinks}
	if t.Detours {
		mesh.Kinds = kinds(c.Kinds)
	}
	switch t.Use {
	case config.UseFullMesh:
		mesh.Mode = path.FullMode
	case config.UseBackup:
		mesh.Mode = path.BackupMode
	case config.UseSingle:
		mesh.Mode = path.SingleMode
	case config.UsePorts:
		return path.Ports{Subflows: t.Subflows}
	case config.UsePaths:
		return path.Paths{Subflows: t.Paths(), Kinds: mesh.Kinds}
	default:
		return path.DetourPolicy{Subflows: cmp.Or(t.Subflows, c.Subflows), Order: kinds(c.Kinds)}
	}
	return mesh
}
