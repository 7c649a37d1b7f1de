package client

import (
	"cmp"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/tunnel"
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

// uplinks holds the uplinks that are offered to the path manager, and the cgroups of policies.
type uplinks struct {
	wanted  bool
	offered map[path.DetourID]path.Detour
	index   map[path.DetourID]int // of the interface
	cgroups []string              // of policies
	known   map[uint64]string     // cgroups' paths by id; empty: none of those of policies
}

func newUplinks(policies []config.Policy) uplinks {
	u := uplinks{offered: make(map[path.DetourID]path.Detour), index: make(map[path.DetourID]int), known: make(map[uint64]string)}
	for _, p := range policies {
		u.wanted = u.wanted || p.OfUplinks() || len(p.Quota) > 0 || len(p.Limit) > 0 || p.Announce
		if p.Cgroup != "" {
			u.cgroups = append(u.cgroups, filepath.Clean(p.Cgroup))
		}
	}
	return u
}

// bound returns the interface to which a subflow is bound, so that routing takes that uplink; 0: none.
func (u *uplinks) bound(a path.CreateSubflow) int {
	if a.Direct || a.Kind != path.Uplink {
		return 0
	}
	for id, d := range u.offered {
		if d.Waypoint == a.Waypoint && d.Local == a.Local {
			return u.index[id]
		}
	}
	return 0
}

// offerUplinks offers new uplinks to the path manager, and withdraws those that are gone.
func (c *Client) offerUplinks() {
	u := &c.host.uplinks
	if !u.wanted {
		return
	}
	list, err := c.host.routes.Uplinks()
	if err != nil {
		c.log.Warn("this host's uplinks cannot be listed", "err", err)
		return
	}
	now := make(map[path.DetourID]bool)
	for _, l := range list {
		if tunnel.Ours(l.Interface) {
			continue
		}
		id := path.DetourID("uplink " + l.Interface + " " + l.Addr.String())
		now[id], u.index[id] = true, l.IfIndex
		if _, ok := u.offered[id]; !ok {
			u.offered[id] = path.Detour{ID: id, Kind: path.Uplink, Waypoint: l.Interface, Local: l.Addr}
			c.backlog = append(c.backlog, path.DetourOffered{Detour: u.offered[id]})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(u.offered)) {
		if !now[id] {
			delete(u.offered, id)
			delete(u.index, id)
			c.backlog = append(c.backlog, path.DetourWithdrawn{ID: id})
		}
	}
}

// cgroupOf returns the path of the cgroup of a connection's program, if a policy is for it or for one around it.
func (c *Client) cgroupOf(local, remote netip.AddrPort) string {
	u := &c.host.uplinks
	if len(u.cgroups) == 0 {
		return ""
	}
	s, err := c.host.kernel.Subflow(local, remote)
	if err != nil || s.Cgroup == 0 {
		return ""
	}
	return u.cgroup(&s)
}

// mostCgroups bounds the memory of cgroups' paths.
const mostCgroups = 4096

// cgroup looks for the folder with the id, which is its inode's number, below those of the policies.
func (u *uplinks) cgroup(s *mptcp.Subflow) (found string) {
	if at, ok := u.known[s.Cgroup]; ok {
		return at
	}
	for _, root := range u.cgroups {
		_ = filepath.WalkDir(root, func(at string, d fs.DirEntry, _ error) error {
			if d == nil || !d.IsDir() {
				return nil // it may just have ended
			}
			if info, err := d.Info(); err == nil {
				stat, ok := info.Sys().(*syscall.Stat_t)
				if ok && stat.Ino == s.Cgroup && len(at) > len(found) {
					found = at
				}
			}
			return nil
		})
	}
	if len(u.known) < mostCgroups {
		u.known[s.Cgroup] = found
	}
	return found
}
