package client

import (
	"io/fs"
	"net/netip"
	"path/filepath"
	"syscall"

	"github.com/detour-collective/dcol/internal/config"
)

// cgroups finds the cgroups of connections' programs, if policies name any.
type cgroups struct {
	named []string          // by policies
	known map[uint64]string // paths by id; empty: none of those of policies
}

func newCgroups(policies []config.Policy) cgroups {
	c := cgroups{known: make(map[uint64]string)}
	for _, p := range policies {
		if p.Cgroup != "" {
			c.named = append(c.named, filepath.Clean(p.Cgroup))
		}
	}
	return c
}

// cgroupOf returns the path of the cgroup of a connection's program, if a policy names that cgroup or one
// that contains it.
func (h *host) cgroupOf(local, remote netip.AddrPort) string {
	if len(h.cgroups.named) == 0 {
		return ""
	}
	s, err := h.kernel.Subflow(local, remote)
	if err != nil || s.Cgroup == 0 {
		return ""
	}
	return h.cgroups.find(s.Cgroup)
}

// mostCgroups bounds the memory of cgroups' paths.
const mostCgroups = 4096

// find looks for the folder with the id, which is its inode's number, below those of the policies.
func (c *cgroups) find(id uint64) (found string) {
	if at, ok := c.known[id]; ok {
		return at
	}
	for _, root := range c.named {
		_ = filepath.WalkDir(root, func(at string, d fs.DirEntry, _ error) error {
			if d == nil || !d.IsDir() {
				return nil // it may just have ended
			}
			if info, err := d.Info(); err == nil {
				stat, ok := info.Sys().(*syscall.Stat_t)
				if ok && stat.Ino == id && len(at) > len(found) {
					found = at
				}
			}
			return nil
		})
	}
	if len(c.known) < mostCgroups {
		c.known[id] = found
	}
	return found
}
